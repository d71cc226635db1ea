//! Host memory for a program's values, where workers exchange through the host.

use std::ffi::c_void;
use std::ops::Range;

use cudarc::driver::sys;

use crate::cpu::{HostUpdate, Simd, UpdateStep};
use crate::{EngineError, Homes, Place, Region, Spec};

/// The mirrors. Others read and write gradients here, and the program copies them out and in. Where parameters have a
/// place on the host, they live there: the update runs on the host, and each run begins with a copy in.
pub(super) struct Mirror {
    parameters: Option<Region>,
    gradients: Vec<Region>,
    /// The update rule and its state, where parameters live here.
    update: Option<HostUpdate>,
    /// What the device may copy from and to by itself; the rest goes through the driver's own buffers.
    registered: Vec<u64>,
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
        let update = parameters.map(|_| HostUpdate::new(spec.optimizer, len, simd)).transpose()?;
        let registered = gradients.iter().chain(&parameters).filter_map(register).collect();
        Ok(Some(Self { parameters, gradients, update, registered }))
    }

    /// The instruction set of the update rule, if it runs here.
    pub fn simd(&self) -> Option<Simd> {
        self.update.as_ref().map(HostUpdate::simd)
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
        self.update.as_mut()?.state(number)
    }

    /// Applies the update rule to parameters that live here.
    pub fn apply(&mut self, step: UpdateStep, range: Range<usize>) -> Result<(), EngineError> {
        let (update, parameters) =
            self.update.as_mut().zip(self.parameters).expect("invariant: they live here");
        let (parameters, gradients) = (parameters.part(range.clone()), self.gradients[0].part(range.clone()));
        // SAFETY: as above.
        unsafe { update.apply(step, parameters, gradients, range.start) }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        for address in &self.registered {
            // SAFETY: registered by `new`; programs wait for their copies before they are dropped.
            let _ = unsafe { sys::cuMemHostUnregister(*address as *mut c_void) };
        }
    }
}

/// Lets the device copy from and to a region by itself. Where the driver refuses, copies are slower.
fn register(region: &Region) -> Option<u64> {
    // SAFETY: the memory is alive as long as the mirror, which ends this.
    let status = unsafe { sys::cuMemHostRegister_v2(region.address as *mut c_void, 4 * region.len, 0) };
    (status == sys::CUresult::CUDA_SUCCESS).then_some(region.address)
}

/// # Safety
/// The region must be alive and on the host, and nobody else may use it meanwhile.
pub(super) unsafe fn host_values<'a>(region: Region) -> &'a mut [f32] {
    // SAFETY: the caller vouches.
    unsafe { std::slice::from_raw_parts_mut(region.address as *mut f32, region.len) }
}
