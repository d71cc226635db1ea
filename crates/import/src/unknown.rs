//! What a file is that nobody here reads, in a few words, and what would be read instead.

/// Letters of a file that are quoted.
const QUOTED: usize = 60;

/// Bytes at the beginning of a text that are looked at one by one.
const JUDGED: usize = 1 << 10;

/// The first bytes of formats that are known by name.
const MAGIC: [(&[u8], &str); 8] = [
    (
        b"NVR\0",
        "a report of Nsight Compute on single kernels; a profile of the whole run is read: `nsys profile`, then `nsys export \
         --type sqlite`",
    ),
    (b"\x7fELF", "a program, not a profile"),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"BZh", "packed with bzip2; unpack it first"),
    (b"\xfd7zXZ\0", "packed with xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it first"),
    (b"\x1f\x8b", "packed with gzip more than once; unpack it first"),
    (b"\x89PNG", "a picture; the numbers in it are not read"),
];

/// What JSON is about, by one of its keys.
const KEYS: [(&str, &str); 2] = [
    (
        "\"rocprofiler-sdk-tool\"",
        "JSON of rocprofv3, which is not read; a trace of PyTorch's profiler shows the same kernels",
    ),
    ("\"cells\"", "a notebook; export it as Markdown to have its tables read"),
];

/// What a file with this beginning is, if that rules out a table; `None` for text.
pub fn describe(head: &[u8]) -> Option<String> {
    if let Some((_, what)) = MAGIC.into_iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(what.into());
    }
    if head.get(257..262) == Some(b"ustar") {
        return Some("a tar archive; unpack it first".into());
    }
    // Texts have line ends, tabs, form feeds, backspaces of progress bars and escapes for colours.
    let is_binary = |byte: &u8| *byte < 0x20 && !matches!(byte, 0x07..=0x0d | 0x1b);
    if head.contains(&0) || head.iter().take(JUDGED).any(is_binary) {
        let instead = "of Nsight Systems' reports, what `nsys export --type sqlite` makes of them is";
        return Some(format!("a binary file of a format that is not read; {instead}"));
    }
    let text = String::from_utf8_lossy(head);
    let first = is_json(&text).then(|| text.split('"').nth(1).unwrap_or_default())?;
    let about = KEYS.into_iter().find(|(key, _)| text.contains(key)).map(|(_, what)| what.to_owned());
    Some(about.unwrap_or_else(|| {
        format!(
            "JSON that is no trace, beginning with {:?}; read are traces with `traceEvents`, and tables as Markdown, CSV or TSV",
            quote(first)
        )
    }))
}

/// A piece of a file that may stand in a sentence.
pub fn quote(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    let short: String = text.chars().take(QUOTED).map(plain).collect();
    if text.chars().nth(QUOTED).is_some() { short + "..." } else { short }
}

/// Whether a text is JSON, on one line or many, and not a page that begins with a bracket.
fn is_json(text: &str) -> bool {
    let inside = |open: char| text.trim_start().strip_prefix(open).map(str::trim_start);
    let begins = |rest: &str| rest.starts_with('"') || rest.starts_with('}');
    inside('{').is_some_and(begins)
        || inside('[').and_then(|rest| rest.strip_prefix('{')).is_some_and(|rest| begins(rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_that_is_not_read_is_named_in_one_short_line() {
        let tar = [vec![b'a'; 10], vec![0; 247], b"ustar\0".to_vec()].concat();
        let long = format!("{{\n  \"{}\": 1\n}}", "x".repeat(50_000));
        for (head, expected) in [
            (&b"NVR\0\x40\0\0\0"[..], "Nsight Compute"),
            (b"\0\x01\x02", "binary"),
            (b"\x1f\x8b\x08\0", "gzip more than once"),
            (&tar, "tar archive"),
            (b"\x0a\x9c\x41\x08\x01\x12\x09/host:CPU\x1a\x9c\x01", "binary"),
            (b"{\n  \"name\": \"x\",\n  \"values\": [\n    1\n  ]\n}\n", "JSON that is no trace"),
            (b"[\n  {\n    \"a\": 1}]", "JSON that is no trace, beginning with \"a\""),
            (b"{\"rocprofiler-sdk-tool\": [{\"metadata\": {}}]}", "rocprofv3"),
            (long.as_bytes(), "xxx..."),
        ] {
            let what = describe(head).unwrap_or_default();
            assert!(
                what.contains(expected) && what.len() < 250 && !what.contains('\n'),
                "{expected}: {what}"
            );
        }
    }

    #[test]
    fn text_that_may_hold_a_table_is_not_refused() {
        for text in [
            "",
            "workers,rate\n1,2\n",
            "[![Build](x)](y)\n\n| a |\n|---|\n",
            "[1]: http://x",
            "{workers}",
            "# A",
        ] {
            assert_eq!(describe(text.as_bytes()), None, "{text}");
        }
    }
}
