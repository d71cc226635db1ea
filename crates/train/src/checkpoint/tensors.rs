//! Tensors as the bytes of safetensors files, and back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use serde::{Deserialize, Serialize};

use super::{CheckpointError, Description, Tensor, Weights};

/// The only key of a file's metadata: the order of several would change from run to run.
const KEY: &str = "paceline";

const FORMAT: &str = "paceline-weights";
const VERSION: u32 = 1;

/// How dimensions follow each other, for readers of other programs.
const ORDER: &str =
    "conv: height, width, in / groups, out; transposed conv: height, width, out, in; dense: in, out";

const OPTIMIZER: &str = "optimizer/";
const SHARDS: &str = "shards/";

/// What the metadata of weights say.
#[derive(Serialize, Deserialize)]
struct Label {
    format: String,
    version: u32,
    #[serde(flatten)]
    network: Description,
    order: String,
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        for (to, value) in bytes.chunks_exact_mut(4).zip(&self.values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}

pub(super) fn pack(network: Option<&Description>, tensors: Vec<(String, &Tensor)>) -> Vec<u8> {
    let metadata = network.map(|network| {
        let label =
            Label { format: FORMAT.into(), version: VERSION, network: network.clone(), order: ORDER.into() };
        let label = serde_json::to_string(&label).expect("invariant: a label is plain data");
        HashMap::from([(KEY.to_owned(), label)])
    });
    safetensors::serialize(tensors, metadata)
        .expect("invariant: a tensor has as many values as its shape says")
}

pub(super) fn pack_state(optimizer: &[Tensor], shards: &[Tensor]) -> Vec<u8> {
    let name = |prefix| move |tensor: &'_ Tensor| format!("{prefix}{}", tensor.name);
    let (of_optimizer, of_shards) = (name(OPTIMIZER), name(SHARDS));
    let optimizer = optimizer.iter().map(|tensor| (of_optimizer(tensor), tensor));
    let shards = shards.iter().map(|tensor| (of_shards(tensor), tensor));
    pack(None, optimizer.chain(shards).collect())
}

/// The tensors in a file's bytes; `path` is for errors.
pub(super) fn unpack(bytes: &[u8], path: &Path) -> Result<Weights, CheckpointError> {
    // Checked here and not by the crate, whose sums overflow on lengths that only a hostile file has.
    let parsed = bytes.split_first_chunk().and_then(|(&length, rest)| {
        let (header, data) = rest.split_at_checked(u64::from_le_bytes(length).try_into().ok()?)?;
        let header: Metadata = serde_json::from_slice(header).ok()?;
        (header.data_len() == data.len()).then_some((header, data))
    });
    let (header, data) =
        parsed.ok_or_else(|| CheckpointError::damaged(path, "it is not a whole safetensors file"))?;
    let read = |name: String| {
        let TensorInfo { dtype, shape, data_offsets: (from, to) } =
            header.info(&name).expect("invariant: a header knows its own names");
        if *dtype != Dtype::F32 {
            return Err(CheckpointError::foreign(path, format!("{name} is {dtype:?}, and only F32 is read")));
        }
        let (values, _) = data[*from..*to].as_chunks();
        let values = values.iter().copied().map(f32::from_le_bytes).collect();
        Ok(Tensor { shape: shape.clone(), values, name })
    };
    let tensors = header.offset_keys().into_iter().map(read).collect::<Result<_, _>>()?;
    let label = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    Ok(Weights { tensors, network: label.map(|label| read_label(label, path)).transpose()? })
}

fn read_label(label: &str, path: &Path) -> Result<Description, CheckpointError> {
    let foreign = |why| CheckpointError::foreign(path, why);
    let label: Label = serde_json::from_str(label)
        .map_err(|error| foreign(format!("its label cannot be read ({error})")))?;
    if label.format != FORMAT || label.version != VERSION {
        let (format, version) = (label.format, label.version);
        return Err(foreign(format!(
            "it is {format} of version {version}, and this program reads {FORMAT} of version {VERSION}"
        )));
    }
    Ok(label.network)
}

/// The optimizer's tensors and those of shards.
pub(super) fn unpack_state(bytes: &[u8], path: &Path) -> Result<(Vec<Tensor>, Vec<Tensor>), CheckpointError> {
    let (mut optimizer, mut shards) = (Vec::new(), Vec::new());
    for tensor in unpack(bytes, path)?.tensors {
        let (kept, name) = if let Some(name) = tensor.name.strip_prefix(OPTIMIZER) {
            (&mut optimizer, name)
        } else if let Some(name) = tensor.name.strip_prefix(SHARDS) {
            (&mut shards, name)
        } else {
            return Err(CheckpointError::foreign(path, format!("it holds {}", tensor.name)));
        };
        kept.push(Tensor { name: name.to_owned(), ..tensor });
    }
    Ok((optimizer, shards))
}
