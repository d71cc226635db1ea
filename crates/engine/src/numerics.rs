//! How a program computes, as far as the bits of its results depend on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::EngineError;
use crate::cpu::Simd;

/// What decides the bits of a result besides the graph, its spec and the version of this crate. The number of threads does
/// not. A program that is compiled with the numerics of another gives the same bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Numerics {
    /// Instruction set of what the host computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction_set: Option<String>,
    /// The GPU's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Versions of the libraries that compute, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub libraries: BTreeMap<String, String>,
    /// How a GPU computes each product, by the product's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<Algorithm>,
}

/// How a GPU computes one product of the network with its weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Algorithm {
    /// Direction, precision, layout, batch and shapes.
    pub product: String,
    /// Which list the algorithm is from.
    pub way: Way,
    /// Its place in that list, from 0.
    pub number: usize,
    /// What the library names it by; empty where it does not tell.
    pub name: String,
}

/// A list of algorithms for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Those of cuBLASLt, for a plain matrix product.
    Gemm,
    /// Those of cuDNN, for a convolution.
    Cudnn,
    /// Those of cuBLASLt, for a convolution whose windows are written out as rows.
    Unrolled,
}

impl Numerics {
    /// The instruction set to compute with on the host; `None` where nothing was computed there.
    pub fn simd(&self) -> Result<Option<Simd>, EngineError> {
        self.instruction_set.as_deref().map(|name| name.parse().map_err(EngineError::Unsupported)).transpose()
    }

    /// Refuses to go on with these numerics on a GPU or with libraries that are others.
    pub(crate) fn check_device(
        &self,
        device: &str,
        libraries: &BTreeMap<String, String>,
    ) -> Result<(), EngineError> {
        let differ = |what: &str, recorded: Option<&str>, here: Option<&str>| {
            let [recorded, here] = [recorded, here].map(|name| name.unwrap_or("none"));
            EngineError::Unsupported(format!(
                "cannot compute with the recorded numerics: {what} is {here} here and was {recorded}"
            ))
        };
        if self.device.as_deref() != Some(device) {
            return Err(differ("the GPU", self.device.as_deref(), Some(device)));
        }
        for name in self.libraries.keys().chain(libraries.keys()) {
            let [recorded, here] = [&self.libraries, libraries].map(|all| all.get(name).map(String::as_str));
            if recorded != here {
                return Err(differ(name, recorded, here));
            }
        }
        Ok(())
    }

    /// The recorded algorithm for a product.
    pub(crate) fn algorithm(&self, product: &str) -> Result<&Algorithm, EngineError> {
        self.algorithms.iter().find(|algorithm| algorithm.product == product).ok_or_else(|| {
            EngineError::Unsupported(format!(
                "the recorded numerics have no algorithm for {product}: they are of another network, batch or precision"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Numerics {
        let algorithm = Algorithm {
            product: "Forward/bf16".into(),
            way: Way::Cudnn,
            number: 3,
            name: "eng38_k2=1".into(),
        };
        Numerics {
            instruction_set: None,
            device: Some("NVIDIA H200".into()),
            libraries: [("cuDNN".to_owned(), "9.14.0".to_owned())].into(),
            algorithms: vec![algorithm],
        }
    }

    #[test]
    fn numerics_are_the_same_after_writing_and_reading() {
        for numerics in [recorded(), Numerics { instruction_set: Some("avx2".into()), ..Numerics::default() }]
        {
            let text = serde_json::to_string(&numerics).unwrap();
            assert_eq!(serde_json::from_str::<Numerics>(&text).unwrap(), numerics, "{text}");
        }
    }

    #[test]
    fn another_gpu_or_library_is_refused_with_both_names() {
        let numerics = recorded();
        assert!(numerics.check_device("NVIDIA H200", &numerics.libraries).is_ok());
        let error = numerics.check_device("NVIDIA A100", &numerics.libraries).unwrap_err().to_string();
        assert!(error.contains("the GPU is NVIDIA A100 here and was NVIDIA H200"), "{error}");
        let newer = [("cuDNN".to_owned(), "9.19.0".to_owned())].into();
        let error = numerics.check_device("NVIDIA H200", &newer).unwrap_err().to_string();
        assert!(error.contains("cuDNN is 9.19.0 here and was 9.14.0"), "{error}");
        let error = numerics.check_device("NVIDIA H200", &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("cuDNN is none here and was 9.14.0"), "{error}");
    }

    #[test]
    fn a_product_or_instruction_set_that_nobody_knows_is_refused_by_name() {
        assert_eq!(recorded().algorithm("Forward/bf16").unwrap().number, 3);
        let error = recorded().algorithm("Data/bf16").unwrap_err().to_string();
        assert!(error.contains("no algorithm for Data/bf16"), "{error}");
        let unknown = Numerics { instruction_set: Some("mmx".into()), ..Numerics::default() };
        assert!(unknown.simd().unwrap_err().to_string().contains("unknown instruction set 'mmx'"));
        assert_eq!(recorded().simd().unwrap(), None);
    }
}
