//! What can be asked of a collective.

use std::fmt;
use std::ops::Range;

use paceline_record::Rank;

/// What becomes of the values of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum, in the order of a fixed binary tree over the areas.
    Sum,
    /// The same, times 1 / world.
    Mean,
}

impl Reduction {
    /// What the sum is multiplied by.
    pub fn scale(self, world: u32) -> f32 {
        match self {
            Self::Sum => 1.0,
            Self::Mean => 1.0 / world as f32,
        }
    }
}

/// A number format of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// IEEE half precision.
    Fp16,
    /// The upper half of a 32-bit float.
    Bf16,
}

/// One operation. Ranges are of values in each rank's own area, and all ranks name the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every rank ends with the reduced values.
    AllReduce {
        /// The values, by their places in an area.
        range: Range<usize>,
        /// Sum or mean.
        reduction: Reduction,
    },
    /// Every rank ends with the reduced values, which travelled in 16 bits: each rank's own are rounded to that format
    /// before they are added up, and so is every sum of them and the result.
    AllReduceHalf {
        /// The values, by their places in an area.
        range: Range<usize>,
        /// Sum or mean.
        reduction: Reduction,
        /// The format.
        half: Half,
        /// Where in each rank's own area the rounded values lie, two to a value: those of value i at `halves` + i / 2.
        halves: usize,
    },
    /// Each rank ends with its own [slice](crate::slice()) of the reduced values; the rest of its range is unchanged.
    ReduceScatter {
        /// The values, by their places in an area.
        range: Range<usize>,
        /// Sum or mean.
        reduction: Reduction,
    },
    /// Every rank ends with the [slices](crate::slice()) of all.
    AllGather {
        /// The values, by their places in an area.
        range: Range<usize>,
    },
    /// Every rank reads the values of all, reduces them by itself, and ends with the reduced values: an all-reduce that
    /// does not divide the work.
    ReplicatedSum {
        /// The values, by their places in an area.
        range: Range<usize>,
        /// Sum or mean.
        reduction: Reduction,
    },
    /// One rank ends with the reduced values, and the other ranks' are unchanged: what a server of parameters does.
    Reduce {
        /// The values, by their places in an area.
        range: Range<usize>,
        /// Sum or mean.
        reduction: Reduction,
        /// The rank that adds up, into its own area.
        root: Rank,
    },
    /// Ends when all ranks have begun it.
    Barrier,
}

impl Operation {
    /// The values that it reads or writes in each rank's own area.
    pub fn range(&self) -> Range<usize> {
        match self {
            Self::AllReduce { range, .. }
            | Self::AllReduceHalf { range, .. }
            | Self::ReduceScatter { range, .. }
            | Self::AllGather { range }
            | Self::ReplicatedSum { range, .. }
            | Self::Reduce { range, .. } => range.clone(),
            Self::Barrier => 0..0,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, how) = match self {
            Self::AllReduce { reduction, .. } => ("all-reduce", Some(reduction)),
            Self::AllReduceHalf { reduction, .. } => ("all-reduce in 16 bits", Some(reduction)),
            Self::ReduceScatter { reduction, .. } => ("reduce-scatter", Some(reduction)),
            Self::AllGather { .. } => ("all-gather", None),
            Self::ReplicatedSum { reduction, .. } => ("replicated sum", Some(reduction)),
            Self::Reduce { reduction, .. } => ("reduce", Some(reduction)),
            Self::Barrier => return f.write_str("barrier"),
        };
        f.write_str(name)?;
        match how {
            Some(Reduction::Sum) => f.write_str(" (sum)")?,
            Some(Reduction::Mean) => f.write_str(" (mean)")?,
            None => {}
        }
        let range = self.range();
        write!(f, " of values {}..{}", range.start, range.end)?;
        if let Self::Reduce { root, .. } = self {
            write!(f, " to rank {root}")?;
        }
        Ok(())
    }
}

/// An operation as three words, for a ring in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// The kind in the low byte, and above it what else it carries.
    pub kind: u64,
    pub start: u64,
    pub end: u64,
}

const KIND_BITS: u32 = 8;

impl From<&Operation> for Descriptor {
    fn from(operation: &Operation) -> Self {
        let (kind, extra) = match *operation {
            Operation::AllReduce { reduction, .. } => (1, reduction as u64),
            Operation::ReduceScatter { reduction, .. } => (2, reduction as u64),
            Operation::AllGather { .. } => (3, 0),
            Operation::ReplicatedSum { reduction, .. } => (4, reduction as u64),
            Operation::Reduce { reduction, root, .. } => (5, reduction as u64 | u64::from(root.0) << 1),
            Operation::Barrier => (6, 0),
            Operation::AllReduceHalf { reduction, half, halves, .. } => {
                (7, reduction as u64 | (half as u64) << 1 | (halves as u64) << 2)
            }
        };
        let range = operation.range();
        Self { kind: kind | extra << KIND_BITS, start: range.start as u64, end: range.end as u64 }
    }
}

impl Descriptor {
    /// The operation; `None` where these words are not one.
    pub fn operation(self) -> Option<Operation> {
        let range = usize::try_from(self.start).ok()?..usize::try_from(self.end).ok()?;
        let extra = self.kind >> KIND_BITS;
        let reduction = if extra & 1 == 0 { Reduction::Sum } else { Reduction::Mean };
        Some(match self.kind & ((1 << KIND_BITS) - 1) {
            1 => Operation::AllReduce { range, reduction },
            2 => Operation::ReduceScatter { range, reduction },
            3 => Operation::AllGather { range },
            4 => Operation::ReplicatedSum { range, reduction },
            5 => Operation::Reduce { range, reduction, root: Rank(u32::try_from(extra >> 1).ok()?) },
            6 => Operation::Barrier,
            7 => Operation::AllReduceHalf {
                range,
                reduction,
                half: if extra & 2 == 0 { Half::Fp16 } else { Half::Bf16 },
                halves: usize::try_from(extra >> 2).ok()?,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_comes_back_from_its_descriptor() {
        let range = 3..1_000_000_007;
        let mut all = vec![Operation::AllGather { range: range.clone() }, Operation::Barrier];
        for reduction in [Reduction::Sum, Reduction::Mean] {
            let range = range.clone();
            all.extend([
                Operation::AllReduce { range: range.clone(), reduction },
                Operation::ReduceScatter { range: range.clone(), reduction },
                Operation::ReplicatedSum { range: range.clone(), reduction },
                Operation::Reduce { range: range.clone(), reduction, root: Rank(u32::MAX) },
                Operation::AllReduceHalf {
                    range: range.clone(),
                    reduction,
                    half: Half::Fp16,
                    halves: 1 << 40,
                },
                Operation::AllReduceHalf { range, reduction, half: Half::Bf16, halves: 7 },
            ]);
        }
        for operation in all {
            let back = Descriptor::from(&operation).operation();
            assert_eq!(back.as_ref(), Some(&operation), "{operation}");
        }
        let nonsense = Descriptor { kind: 0, start: 0, end: 0 };
        assert_eq!(nonsense.operation(), None);
    }

    #[test]
    fn an_operation_says_what_it_does_to_which_values() {
        let reduce = Operation::Reduce { range: 2..5, reduction: Reduction::Sum, root: Rank(1) };
        assert_eq!(reduce.to_string(), "reduce (sum) of values 2..5 to rank 1");
        let mean = Operation::AllReduce { range: 0..9, reduction: Reduction::Mean };
        assert_eq!(mean.to_string(), "all-reduce (mean) of values 0..9");
    }
}
