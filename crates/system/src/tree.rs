//! The kernel's files below a root. Whatever they hold, reading them neither fails nor hangs.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// More than any file of interest holds.
const MOST_BYTES: u64 = 8 << 20;

/// Hardware threads that no machine exceeds.
const MOST_THREADS: usize = 1 << 16;

/// The file system below a root: `/`, or a test's folder.
#[derive(Clone, Debug)]
pub struct Tree(PathBuf);

impl Tree {
    /// What lies below a folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Where a path of the machine lies.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether something is there.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).exists()
    }

    /// The plain file that a path leads to through its links, if that lies in the tree.
    pub fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let file = fs::canonicalize(self.at(path)).ok().filter(|file| file.is_file())?;
        Some(Path::new("/").join(file.strip_prefix(fs::canonicalize(&self.0).ok()?).ok()?))
    }

    /// What a plain file holds.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = self.at(path);
        // Opening a pipe would wait for its writer.
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The one number that a file holds.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The one word or line that a file holds.
    pub fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        clean(self.text(path)?.lines().next()?)
    }

    /// The list of numbers that a file holds, as `0-3,8`.
    pub fn list(&self, path: impl AsRef<Path>) -> Option<Vec<usize>> {
        parse_list(&self.text(path)?)
    }

    /// Names in a folder, in order.
    pub fn names(&self, path: impl AsRef<Path>) -> Option<Vec<String>> {
        let entries = fs::read_dir(self.at(path)).ok()?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        Some(names)
    }
}

/// What stands after the colon in the first line of that name.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Text fit for a terminal: a short line without control characters; `None` where nothing is left.
pub fn clean(text: &str) -> Option<String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String = words.chars().filter(|letter| !letter.is_control()).take(120).collect();
    (!text.is_empty()).then_some(text)
}

/// Reads `0-3,8` as the kernel writes it.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let number = |text: &str| text.parse().ok().filter(|&number| number < MOST_THREADS);
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        match part.split_once('-') {
            Some((first, last)) => numbers.extend(number(first)?..=number(last)?),
            None => numbers.push(number(part)?),
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    (!numbers.is_empty()).then_some(numbers)
}

/// Writes numbers as `0-3,8`.
pub fn write_list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let write = |run: &[usize]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(write).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A machine that is made up of files in a temporary folder.
    pub struct Made {
        pub tree: Tree,
        root: TempDir,
    }

    impl Made {
        pub fn new(files: &[(&str, &str)]) -> Self {
            let root = tempfile::tempdir().expect("a temporary folder");
            let made = Self { tree: Tree::new(root.path()), root };
            files.iter().for_each(|(path, text)| made.plant(path, text));
            made
        }

        /// Writes a file, and the folders that it is in.
        pub fn plant(&self, path: &str, text: impl AsRef<[u8]>) {
            let path = self.root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }

        /// Puts a folder where a file was.
        pub fn obstruct(&self, path: &str) {
            fs::remove_file(self.root.path().join(path)).expect("a file");
            fs::create_dir(self.root.path().join(path)).expect("a folder");
        }
    }

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        for bad in ["", "\n", "a", "1-", "-1", "3-1", "0-99999999999", "0-70000", "1,,2"] {
            assert_eq!(parse_list(bad), None, "{bad:?}");
        }
        assert_eq!(write_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
    }

    #[test]
    fn text_for_the_terminal_carries_no_control_characters() {
        assert_eq!(clean(" AMD \t EPYC\u{1b}[2J\0 ").as_deref(), Some("AMD EPYC[2J"));
        assert_eq!(clean("\u{1b} \n"), None);
        assert_eq!(clean(&"x".repeat(5000)).map(|text| text.len()), Some(120));
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 17\nmodel name\t: Abacus: 9000\n";
        assert_eq!(field(text, "model"), Some("17"));
        assert_eq!(field(text, "model name"), Some("Abacus: 9000"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn folders_and_missing_files_hold_no_text() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tree = Tree::new(folder.path());
        fs::write(folder.path().join("binary"), [0xff, 0xfe, 0]).expect("a file");
        assert_eq!(tree.text("/"), None);
        assert_eq!(tree.text("/missing"), None);
        assert_eq!(tree.number("/binary"), None);
        assert_eq!(tree.names("/"), Some(vec!["binary".into()]));
        assert_eq!(tree.names("/binary"), None);
    }
}
