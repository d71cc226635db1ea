//! The formats of foreign files.

use serde::{Deserialize, Serialize};

/// The format of a foreign file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A trace of PyTorch's profiler.
    Kineto,
    /// A profile of nvprof or Nsight Systems.
    Sqlite,
    /// A timeline of Horovod.
    Horovod,
    /// An event file of TensorBoard.
    Events,
    /// A log of tf_cnn_benchmarks.
    TfCnn,
    /// A `metric.log` of TensorFlow.
    MetricLog,
    /// Output of nvidia-smi.
    NvidiaSmi,
    /// A profile of JAX or TensorFlow.
    #[serde(rename = "xplane")]
    XPlane,
    /// A Chrome trace of another writer.
    Chrome,
}

impl Format {
    /// Its name in sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kineto => "PyTorch profiler traces",
            Self::Sqlite => "nvprof or Nsight Systems profiles",
            Self::Horovod => "a Horovod timeline",
            Self::Events => "TensorBoard event files",
            Self::TfCnn => "a tf_cnn_benchmarks log",
            Self::MetricLog => "a TensorFlow metric.log",
            Self::NvidiaSmi => "nvidia-smi samples",
            Self::XPlane => "JAX or TensorFlow profiles",
            Self::Chrome => "a Chrome trace",
        }
    }
}
