//! A foreign trace, or a window of one, in the form of Chrome's trace events.

use std::io::{self, Write};
use std::path::Path;

use paceline_lab::run::Span;
use paceline_lab::{LabError, write_whole};
use paceline_record::Nanos;
use serde_json::json;

use crate::spans::Spans;
use crate::trace::Trace;

/// Writes the part of a trace inside a window.
pub fn write_trace(trace: &Trace, window: &Spans, path: &Path) -> Result<(), LabError> {
    let window = window.extent().unwrap_or(Span { begin: Nanos(0), end: Nanos(0) });
    write_whole(path, |out| draw(trace, window, out))
}

fn draw(trace: &Trace, window: Span, out: &mut dyn Write) -> io::Result<()> {
    let micros = |time: Nanos| time.0 as f64 / 1e3;
    // The host is one process, each device another; a track is a thread of its own.
    let process =
        |track: usize| trace.tracks.get(track).and_then(|t| t.device).map_or(0, |device| device + 1);
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut comma = "";
    for (number, track) in trace.tracks.iter().enumerate() {
        let group = track.device.map_or("host".into(), |device| format!("device {device}"));
        for (what, name) in [("process_name", &group), ("thread_name", &track.name)] {
            let event = json!({
                "ph": "M", "name": what, "pid": process(number), "tid": number, "args": {"name": name},
            });
            write!(out, "{comma}\n{event}")?;
            comma = ",";
        }
    }
    for slice in trace.slices.iter().filter(|slice| slice.begin < window.end && slice.end > window.begin) {
        let (begin, end) = (slice.begin.max(window.begin), slice.end.min(window.end));
        let mut event = json!({
            "ph": "X",
            "name": trace.names.text(slice.name),
            "cat": format!("{:?}", slice.kind),
            "pid": process(slice.track as usize),
            "tid": slice.track,
            "ts": micros(begin.since(window.begin)),
            "dur": micros(end.since(begin)),
        });
        if let Some(bytes) = slice.bytes {
            event["args"] = json!({"bytes": bytes.0});
        }
        write!(out, "{comma}\n{event}")?;
        comma = ",";
    }
    writeln!(out, "\n]}}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::trace::{Kind, Slice, Track};

    #[test]
    fn slices_are_cut_to_the_window_and_keep_their_tracks() {
        let mut trace = Trace::default();
        let name = trace.names.enter("gemm \"x\"");
        trace.tracks = vec![Track { name: "stream 7".into(), device: Some(0) }];
        let slice = |begin, end| Slice {
            kind: Kind::Compute,
            name,
            begin: Nanos(begin),
            end: Nanos(end),
            track: 0,
            correlation: 0,
            bytes: None,
        };
        trace.slices = vec![slice(0, 500), slice(1_000, 5_000), slice(9_000, 9_500)];
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("out.json");
        let mut window = Spans::default();
        window.push(Nanos(2_000), Nanos(6_000));
        write_trace(&trace, &window, &path).expect("room");
        let text = fs::read(&path).expect("a file");
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let events = json["traceEvents"].as_array().expect("a list");
        assert_eq!(events.len(), 3, "two names and one slice");
        assert_eq!((&events[2]["ts"], &events[2]["dur"]), (&json!(0.0), &json!(3.0)));
        assert_eq!(events[2]["name"], "gemm \"x\"");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no draft is left");
    }
}
