//! Host memory for a program's values, where workers exchange through the host.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;

use cudarc::driver::sys;

use crate::cpu::{HostUpdate, Memory, Moved, Simd, Update, View};
use crate::{EngineError, Homes, Optimizer, Place, Precision, Region, Spec};

/// The mirrors. Others read and write gradients here, and the program copies them out and in. Where parameters have a
/// place on the host, they live there: the update runs on the host, and each run begins with a copy in.
pub(super) struct Mirror {
    parameters: Option<Region>,
    gradients: Vec<Region>,
    len: usize,
    optimizer: Optimizer,
    simd: Simd,
    /// The update rule, once it is asked for.
    update: Option<HostUpdate>,
    /// Its state, where parameters live here. Its pages are taken when first used: where updates are done elsewhere, never.
    state: Vec<Memory>,
    /// By address, whether the device may copy from and to a region by itself; else that goes through the driver's own buffers.
    registered: BTreeMap<u64, bool>,
}

impl Mirror {
    /// A mirror where memory on the host was provided; `None` where none was. `simd` is the instruction set of the update
    /// rule where parameters live here; the best one that the machine has if none is named.
    pub fn new(
        homes: &Homes,
        len: usize,
        spec: &Spec,
        simd: Option<Simd>,
    ) -> Result<Option<Self>, EngineError> {
        if homes.gradients.is_empty() && homes.parameters.is_none() {
            return Ok(None);
        }
        let shards = spec.shards;
        let fits = |region: &Region| region.place == Place::Host && region.len >= len;
        if homes.gradients.len() != shards || !homes.gradients.iter().all(fits) {
            return Err(EngineError::Unsupported(format!(
                "memory on the host for the gradients of {shards} shards of {len} values was expected"
            )));
        }
        let parameters = match homes.parameters {
            Some((region, _)) if fits(&region) => Some(region.part(0..len)),
            Some(_) => {
                return Err(EngineError::Unsupported(format!(
                    "memory on the host for {len} values was expected"
                )));
            }
            None => None,
        };
        let gradients: Vec<Region> = homes.gradients.iter().map(|region| region.part(0..len)).collect();
        let kept = if parameters.is_some() { spec.optimizer.state_per_value() } else { 0 };
        let mut mirror = Self {
            parameters,
            gradients,
            len,
            optimizer: spec.optimizer,
            simd: Simd::choose(simd, Precision::Fp32)?,
            update: None,
            state: (0..kept).map(|_| Memory::new(len)).collect::<Result<_, _>>()?,
            registered: BTreeMap::new(),
        };
        mirror.register();
        Ok(Some(mirror))
    }

    /// Goes on in other memory. What `homes` leaves out stays where it is.
    pub fn bind(&mut self, homes: &Homes) -> Result<(), EngineError> {
        let Self { len, .. } = *self;
        let fits = |region: &Region| region.place == Place::Host && region.len >= len;
        let parameters = homes.parameters.map(|(region, _)| region);
        if homes.gradients.len() > self.gradients.len()
            || !homes.gradients.iter().chain(&parameters).all(fits)
        {
            return Err(EngineError::Unsupported(format!(
                "memory on the host for {len} parameters and the gradients of at most {} shards was expected",
                self.gradients.len()
            )));
        }
        if parameters.is_some() && self.parameters.is_none() {
            return Err(EngineError::Unsupported(
                "the parameters of this program are on its device: it was compiled without memory for them on the host"
                    .into(),
            ));
        }
        self.parameters = parameters.map(|region| region.part(0..len)).or(self.parameters);
        for (own, region) in self.gradients.iter_mut().zip(&homes.gradients) {
            *own = region.part(0..len);
        }
        self.register();
        Ok(())
    }

    /// Lets the device copy from and to the regions by itself. Where the driver refuses, copies are slower.
    fn register(&mut self) {
        for region in self.gradients.iter().chain(&self.parameters) {
            self.registered.entry(region.address).or_insert_with(|| register(region));
        }
    }

    /// The instruction set of the update rule, if it runs here.
    pub fn simd(&self) -> Option<Simd> {
        self.parameters.map(|_| self.simd)
    }

    /// Where the parameters live, if it is here.
    pub fn parameters(&self) -> Option<Region> {
        self.parameters
    }

    pub fn gradients(&self, shard: usize) -> Region {
        self.gradients[shard]
    }

    /// The parameters that live here.
    pub fn parameters_mut(&mut self) -> Option<&mut [f32]> {
        // SAFETY: `Homes` vouches that the memory is valid and nobody else's during a call of the program.
        self.parameters.map(|region| unsafe { host_values(region) })
    }

    /// State of the update rule, where parameters live here.
    pub fn state(&mut self, number: usize) -> Option<Region> {
        let memory = self.state.get_mut(number)?;
        Some(Region { place: Place::Host, address: memory.view().ptr() as u64, len: self.len })
    }

    /// Applies the update rule to parameters that live here. `count` is that of the updates so far, this one included.
    pub fn apply(&mut self, learning_rate: f32, count: i32, range: Range<usize>) -> Result<(), EngineError> {
        let rule = match self.update.take() {
            Some(rule) => rule,
            None => HostUpdate::new(self.optimizer, Some(self.simd))?,
        };
        let rule = self.update.insert(rule);
        let parameters = self.parameters.expect("invariant: they live here").part(range.clone());
        let gradients = self.gradients[0].part(range.clone());
        let cut = |memory: &mut Memory| Moved::in_place(memory.view().part(range.start, range.len()));
        let mut state = self.state.iter_mut().map(cut);
        let update = Update {
            optimizer: self.optimizer,
            learning_rate,
            count,
            params: Moved::in_place(View::of_region(parameters, range.len())?),
            grads: View::of_region(gradients, range.len())?,
            first: state.next(),
            second: state.next(),
        };
        // SAFETY: as above.
        unsafe { rule.apply(update) };
        Ok(())
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        for (address, _) in self.registered.iter().filter(|(_, registered)| **registered) {
            // SAFETY: registered above; programs wait for their copies before they are dropped.
            let _ = unsafe { sys::cuMemHostUnregister(*address as *mut c_void) };
        }
    }
}

/// Whether the device may copy from and to a region by itself from now on.
fn register(region: &Region) -> bool {
    // SAFETY: the memory is alive as long as the mirror, which ends this.
    let status = unsafe { sys::cuMemHostRegister_v2(region.address as *mut c_void, 4 * region.len, 0) };
    status == sys::CUresult::CUDA_SUCCESS
}

/// # Safety
/// The region must be alive and on the host, and nobody else may use it meanwhile.
pub(super) unsafe fn host_values<'a>(region: Region) -> &'a mut [f32] {
    // SAFETY: the caller vouches.
    unsafe { std::slice::from_raw_parts_mut(region.address as *mut f32, region.len) }
}
