//! Sums of gradients: on one host, and of what several hosts have.

use std::ops::Range;

use super::Ground;
use crate::half::{Addend, RoundedSum, decode};
use crate::reduction::Sum;
use crate::tasks::Parts;
use crate::{Area, Half, Reduction};

/// Shards whose addresses are kept on the stack.
const FEW: usize = 64;

/// Values that are added up at a time where nodes of several hosts are.
const RUN: usize = 2048;

impl Ground {
    /// The mean over all shards of a range of their gradients, added up in the order of the tree that every sum has.
    ///
    /// # Safety
    /// Nobody may write to this range of any shard's gradients meanwhile.
    ///
    /// # Panics
    /// If `into` has another length than the range.
    pub unsafe fn mean_gradients(&self, range: &Range<usize>, into: &mut [f32]) {
        assert_eq!(range.len(), into.len(), "invariant: room for the whole range");
        let shards = self.size.shape.shards;
        if let Some(half) = self.size.half {
            let into = [into.as_mut_ptr()];
            let sum = self.rounded_mean(half, &into, range.len(), None);
            // SAFETY: as the caller vouches.
            return unsafe { sum.run(self.own_addends(0..shards, range)) };
        }
        let part = |shard| self.gradients(shard).part(range);
        let scale = Reduction::Mean.scale(shards);
        let add = |from: &[*mut f32], into: &mut [f32]| {
            let sum = Sum { from, into: &[into.as_mut_ptr()], len: range.len(), scale };
            // SAFETY: the runs lie in their areas, and the caller vouches for them; `into` is borrowed.
            unsafe { sum.run() }
        };
        if shards as usize <= FEW {
            let mut from = [std::ptr::null_mut(); FEW];
            (0..shards).for_each(|shard| from[shard as usize] = part(shard));
            add(&from[..shards as usize], into);
        } else {
            add(&(0..shards).map(part).collect::<Vec<_>>(), into);
        }
    }
}

impl Ground {
    /// Adds up this host's nodes of a range of the gradients, for the host that owns it.
    ///
    /// # Safety
    /// Nobody may write to this range of its shards' gradients meanwhile, and nobody else may use their outboxes there.
    pub unsafe fn add_part(&self, parts: &Parts, range: &Range<usize>) {
        if let Some(half) = self.size.half {
            for node in parts.nodes(parts.own()) {
                let rounded = Some(rounded(self.node(parts, node), range));
                let sum = RoundedSum { half, into: &[], rounded, len: range.len(), scale: 1.0 };
                // SAFETY: as below.
                unsafe { sum.run(self.own_addends(node.shards(), range)) };
            }
            return;
        }
        for node in parts.nodes(parts.own()).filter(|node| node.level > 0) {
            // SAFETY: the runs lie in their areas, which do not overlap; the caller vouches for the rest.
            unsafe { self.add_up(node.shards(), range, self.node(parts, node).part(range)) };
        }
    }

    /// As [`Self::mean_gradients`], where other hosts' shards are there as nodes, each at its first shard; the mean is also put where it is
    /// sent to them from.
    ///
    /// # Safety
    /// As there, with the nodes of other hosts; nobody else may use this range of the means.
    ///
    /// # Panics
    /// As there.
    pub unsafe fn mean_of_parts(&self, parts: &Parts, range: &Range<usize>, into: &mut [f32]) {
        assert_eq!(range.len(), into.len(), "invariant: room for the whole range");
        if let Some(half) = self.size.half {
            let addends = parts.all_nodes().flat_map(|(node, is_own)| {
                let theirs = (!is_own)
                    .then(|| (node.level, Addend::Rounded(rounded(self.gradients(node.first), range))));
                let own = is_own.then(|| self.own_addends(node.shards(), range));
                theirs.into_iter().chain(own.into_iter().flatten())
            });
            let into = [into.as_mut_ptr()];
            let sum = self.rounded_mean(half, &into, range.len(), Some(rounded(self.means(), range)));
            // SAFETY: as the caller vouches.
            return unsafe { sum.run(addends) };
        }
        let scale = Reduction::Mean.scale(parts.all_shards());
        let (first, _) = parts.all_nodes().next().expect("invariant: a sum has a node");
        let is_even = parts.all_nodes().all(|(node, _)| node.level == first.level);
        let is_few = parts.all_nodes().count() <= FEW && 1 << first.level <= FEW;
        let mut tower = Tower { floors: [(0, std::ptr::null_mut()); FEW], height: 0, sums: Vec::new() };
        let mut own = [0.0; RUN];
        let is_plain = is_even && is_few && (first.level == 0 || parts.nodes(parts.own()).count() == 1);
        // Single shards are added up at once: none of them needs room for its sum.
        let most = if is_plain && first.level == 0 { range.len().max(1) } else { RUN };
        for begin in (0..range.len()).step_by(most) {
            let end = (begin + most).min(range.len());
            let run = range.start + begin..range.start + end;
            let into = [into[begin..end].as_mut_ptr(), self.means().part(&run)];
            if is_plain {
                let mut from = [std::ptr::null_mut(); FEW];
                let mut count = 0;
                for (node, is_own) in parts.all_nodes() {
                    from[count] = self.gradients(node.first).part(&run);
                    if is_own && node.level > 0 {
                        // SAFETY: as the caller vouches; `own` is private and long enough.
                        unsafe { self.add_up(node.shards(), &run, own.as_mut_ptr()) };
                        from[count] = own.as_mut_ptr();
                    }
                    count += 1;
                }
                let sum = Sum { from: &from[..count], into: &into, len: run.len(), scale };
                // SAFETY: nodes of one level are added up as shards are; the caller vouches for the rest.
                unsafe { sum.run() };
                continue;
            }
            for (node, is_own) in parts.all_nodes() {
                let shards = if is_own { node.shards() } else { node.first..node.first + 1 };
                // SAFETY: as the caller vouches.
                unsafe { tower.add(self, node.level, shards, &run) };
            }
            // SAFETY: `into` is borrowed, and the caller vouches for the means.
            unsafe { tower.finish(&into, run.len(), scale) };
        }
    }

    /// The mean of a range as another host has sent it.
    ///
    /// # Safety
    /// It must be there, and nobody may write to it meanwhile.
    ///
    /// # Panics
    /// If `into` has another length than the range.
    pub unsafe fn read_mean(&self, range: &Range<usize>, into: &mut [f32]) {
        assert_eq!(range.len(), into.len(), "invariant: room for the whole range");
        // SAFETY: as the caller vouches.
        unsafe {
            match self.size.half {
                None => into.copy_from_slice(self.means().read(range.clone())),
                Some(half) => decode(half, rounded(self.means(), range), into),
            }
        }
    }

    /// Where a run of gradients lies as it travels, and its bytes.
    pub(crate) fn travelling_run(&self, area: Area, range: &Range<usize>) -> (*mut u8, usize) {
        match self.size.half {
            None => (area.part(range).cast(), size_of::<f32>() * range.len()),
            Some(_) => (rounded(area, range).cast(), size_of::<u16>() * range.len()),
        }
    }

    fn rounded_mean<'a>(
        &self,
        half: Half,
        into: &'a [*mut f32],
        len: usize,
        rounded: Option<*mut u16>,
    ) -> RoundedSum<'a> {
        RoundedSum { half, into, rounded, len, scale: Reduction::Mean.scale(self.size.shape.shards) }
    }

    fn own_addends(
        &self,
        shards: Range<u32>,
        range: &Range<usize>,
    ) -> impl Iterator<Item = (u32, Addend)> + Clone {
        shards.map(|shard| (0, Addend::Wide(self.gradients(shard).part(range))))
    }

    /// # Safety
    /// As for [`Sum::run`].
    unsafe fn add_up(&self, shards: Range<u32>, run: &Range<usize>, into: *mut f32) {
        let add = |from: &[*mut f32]| {
            // SAFETY: as the caller vouches.
            unsafe { Sum { from, into: &[into], len: run.len(), scale: 1.0 }.run() };
        };
        let at = |shard| self.gradients(shard).part(run);
        if shards.len() > FEW {
            return add(&shards.map(at).collect::<Vec<_>>());
        }
        let mut from = [std::ptr::null_mut(); FEW];
        let count = shards.len();
        shards.zip(&mut from).for_each(|(shard, place)| *place = at(shard));
        add(&from[..count]);
    }
}

/// Where a run of values lies in 16 bits: they fill the first half of their area.
fn rounded(area: Area, range: &Range<usize>) -> *mut u16 {
    let within = area.part(&(0..range.end)).cast::<u16>();
    within.wrapping_add(range.start)
}

/// Sums of nodes that wait for their right-hand side, where nodes have different levels.
struct Tower {
    /// Levels, and where the values are.
    floors: [(u32, *mut f32); FEW],
    height: usize,
    /// Room for a sum on each floor; it is made once for a slice.
    sums: Vec<[f32; RUN]>,
}

impl Tower {
    /// Adds a node of a level, the sum of these shards, and completes what it completes.
    ///
    /// # Safety
    /// As for [`Sum::run`].
    unsafe fn add(&mut self, ground: &Ground, level: u32, shards: Range<u32>, run: &Range<usize>) {
        if self.sums.is_empty() {
            self.sums.resize(FEW, [0.0; RUN]);
        }
        let sum = self.sums[self.height].as_mut_ptr();
        // SAFETY: the caller vouches for what is read; the sum is this tower's own, and long enough.
        unsafe { ground.add_up(shards, run, sum) };
        self.floors[self.height] = (level, sum);
        self.height += 1;
        while self.height > 1 && self.floors[self.height - 2].0 == self.floors[self.height - 1].0 {
            // SAFETY: as above.
            unsafe { self.join(run.len()) };
        }
    }

    /// Adds the two floors on top.
    ///
    /// # Safety
    /// Their values must be there.
    unsafe fn join(&mut self, len: usize) {
        let [(level, left), (_, right)] = [self.floors[self.height - 2], self.floors[self.height - 1]];
        // SAFETY: both are this tower's own, and long enough.
        unsafe { Sum { from: &[left, right], into: &[left], len, scale: 1.0 }.run() };
        self.height -= 1;
        self.floors[self.height - 1] = (level + 1, left);
    }

    /// Adds up what is left, from the right.
    ///
    /// # Safety
    /// As for [`Sum::run`].
    unsafe fn finish(&mut self, into: &[*mut f32], len: usize, scale: f32) {
        // SAFETY: as the caller vouches.
        unsafe {
            while self.height > 1 {
                self.join(len);
            }
            Sum { from: &[self.floors[0].1], into, len, scale }.run();
        }
        self.height = 0;
    }
}
