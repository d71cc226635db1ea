//! Requests that no engine can meet.

use paceline_model::Graph;

use crate::{EngineError, Spec};

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
