//! Host memory that stands for a program's parameters and gradients where workers exchange through the host.

use crate::{EngineError, Homes, Place, Region};

/// The mirrors: the host's copy is what others read and write; the program copies it in and out.
#[derive(Debug)]
pub(super) struct Mirror {
    parameters: Region,
    gradients: Vec<Region>,
    /// The parameters, where nobody provides memory for them.
    _own: Vec<f32>,
}

impl Mirror {
    /// A mirror where memory on the host was provided; `None` where none was.
    pub fn new(homes: &Homes, len: usize, shares: usize) -> Result<Option<Self>, EngineError> {
        if homes.gradients.is_empty() && homes.parameters.is_none() {
            return Ok(None);
        }
        let fits = |region: &Region| region.place == Place::Host && region.len >= len;
        if homes.gradients.len() != shares || !homes.gradients.iter().all(fits) {
            return Err(EngineError::Unsupported(format!(
                "memory on the host for the gradients of {shares} shares of {len} values was expected"
            )));
        }
        let mut own = Vec::new();
        let parameters = match homes.parameters {
            Some((region, _)) if fits(&region) => region.part(0..len),
            Some(_) => {
                return Err(EngineError::Unsupported(format!(
                    "memory on the host for {len} values was expected"
                )));
            }
            None => {
                own.resize(len, 0.0f32);
                Region { place: Place::Host, address: own.as_mut_ptr() as u64, len }
            }
        };
        let gradients = homes.gradients.iter().map(|region| region.part(0..len)).collect();
        Ok(Some(Self { parameters, gradients, _own: own }))
    }

    pub fn parameters(&self) -> Region {
        self.parameters
    }

    pub fn gradients(&self, share: usize) -> Region {
        self.gradients[share]
    }

    pub fn parameters_mut(&mut self) -> &mut [f32] {
        // SAFETY: `Homes` vouches that the memory is valid and nobody else's during a call of the program.
        unsafe { values(self.parameters) }
    }

    pub fn gradients_mut(&mut self, share: usize) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { values(self.gradients[share]) }
    }

    pub fn read(&mut self, region: Region, into: &mut [f32]) -> Result<(), EngineError> {
        // SAFETY: as above; regions on the host are the mirrors'.
        into.copy_from_slice(unsafe { values(region) });
        Ok(())
    }

    pub fn write(&mut self, region: Region, from: &[f32]) -> Result<(), EngineError> {
        // SAFETY: as above.
        unsafe { values(region) }.copy_from_slice(from);
        Ok(())
    }
}

/// # Safety
/// The region must be alive and on the host, and nobody else may use it meanwhile.
unsafe fn values<'a>(region: Region) -> &'a mut [f32] {
    // SAFETY: the caller vouches.
    unsafe { std::slice::from_raw_parts_mut(region.address as *mut f32, region.len) }
}
