//! Requests that no engine can meet, refused in the same words by all.

use std::ops::Range;

use paceline_model::{Graph, Shape};

use crate::{EngineError, Samples, Spec};

/// Refuses a spec that no program can be compiled for.
pub(crate) fn check_spec(spec: &Spec) -> Result<(), EngineError> {
    let refused = |text: String| Err(EngineError::Unsupported(text));
    if spec.batch == 0 {
        return refused("a batch of 0 samples has no loss; use --batch 1 or more".into());
    }
    if spec.shards == 0 {
        return refused("a program runs at least one shard of a step".into());
    }
    if !(0.0..1.0).contains(&spec.label_smoothing) {
        return refused(format!(
            "label smoothing of {} leaves no label; use 0 or more, and less than 1",
            spec.label_smoothing
        ));
    }
    Ok(())
}

/// Refuses a program that needs more bytes than are available, where that is known.
pub(crate) fn check_memory(
    graph: &Graph,
    spec: &Spec,
    needed: u64,
    available: Option<u64>,
) -> Result<(), EngineError> {
    match available {
        Some(available) if available < needed => Err(EngineError::TooLarge {
            model: graph.name.clone(),
            batch: spec.batch,
            needed_mb: needed / 1_000_000,
            available_mb: available / 1_000_000,
        }),
        _ => Ok(()),
    }
}

pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), EngineError> {
    if expected == got { Ok(()) } else { Err(EngineError::WrongLength { what, expected, got }) }
}

pub(crate) fn check_below(what: &'static str, limit: usize, got: usize) -> Result<(), EngineError> {
    if got < limit {
        return Ok(());
    }
    Err(EngineError::Unsupported(format!("{what} {got} is not below {limit}")))
}

/// Refuses a range that does not lie within so many parameters.
pub(crate) fn check_range(range: &Range<usize>, len: usize) -> Result<(), EngineError> {
    if range.start <= range.end && range.end <= len {
        return Ok(());
    }
    Err(EngineError::WrongLength { what: "range of parameters", expected: len, got: range.end })
}

/// What a batch must be like.
#[derive(Clone, Copy)]
pub(crate) struct BatchShape {
    pub batch: usize,
    /// Of one image.
    pub input: Shape,
    /// Classes of a network whose loss uses labels.
    pub classes: Option<usize>,
}

impl BatchShape {
    pub fn new(graph: &Graph, spec: &Spec) -> Self {
        let classes = graph.judges_labels().then_some(graph.classes);
        Self { batch: spec.batch, input: graph.input(), classes }
    }

    /// Refuses a batch of another size, and labels that the network has no class for.
    pub fn check(&self, samples: Samples<'_>) -> Result<(), EngineError> {
        check_len("images", self.batch * self.input.len(), samples.images.len())?;
        check_len("labels", self.batch, samples.labels.len())?;
        let Some(classes) = self.classes else { return Ok(()) };
        match samples.labels.iter().position(|&label| label as usize >= classes) {
            Some(sample) => Err(EngineError::BadLabel { sample, label: samples.labels[sample], classes }),
            None => Ok(()),
        }
    }
}
