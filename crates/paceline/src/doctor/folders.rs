//! Folders where the loader looks for shared libraries. Nothing is loaded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use paceline_system::tree::Tree;

/// How deep configuration files may include one another.
const DEPTH: usize = 4;

/// Folders in the loader's order.
pub struct Folders<'a> {
    tree: &'a Tree,
    paths: Vec<PathBuf>,
}

impl<'a> Folders<'a> {
    /// Those of `LD_LIBRARY_PATH`, of the configuration, and the usual ones.
    pub fn find(tree: &'a Tree, library_path: Option<&OsStr>) -> Self {
        let mut paths: Vec<PathBuf> =
            library_path.map(|list| std::env::split_paths(list).collect()).unwrap_or_default();
        paths.retain(|path| path.is_absolute());
        read_configuration(tree, Path::new("/etc/ld.so.conf"), DEPTH, &mut paths);
        let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
        paths.extend(["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(&machine)));
        let usual =
            ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64"];
        paths.extend(usual.map(PathBuf::from));
        Self { tree, paths }
    }

    /// The first library of that name, as `libnccl.so`, with or without a version behind it.
    pub fn search(&self, name: &str) -> Option<PathBuf> {
        for folder in &self.paths {
            let names = self.tree.names(folder).unwrap_or_default();
            let fits = |file: &&String| {
                file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            // Links end at the file whose name tells the whole version.
            let mut found = names.iter().filter(fits).filter_map(|file| self.tree.resolve(folder.join(file)));
            if let Some(path) = found.next() {
                return Some(path);
            }
        }
        None
    }
}

/// Adds the folders that a configuration file of the loader names.
fn read_configuration(tree: &Tree, path: &Path, depth: usize, folders: &mut Vec<PathBuf>) {
    let Some(text) = tree.text(path).filter(|_| depth > 0) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include ").map(str::trim) {
            Some(pattern) => {
                // A relative pattern starts where its file lies.
                let pattern = path.parent().unwrap_or(path).join(pattern);
                for file in expand(tree, &pattern) {
                    read_configuration(tree, &file, depth - 1, folders);
                }
            }
            None if line.starts_with('/') => folders.push(line.into()),
            None => {}
        }
    }
}

/// Files that a pattern with at most one star, in the file's name, stands for.
fn expand(tree: &Tree, pattern: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name().and_then(OsStr::to_str)) else {
        return Vec::new();
    };
    let Some((before, after)) = name.split_once('*') else { return vec![pattern.into()] };
    let mut names = tree.names(folder).unwrap_or_default();
    names.retain(|name| name.strip_prefix(before).is_some_and(|rest| rest.ends_with(after)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn plant(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn libraries_are_found_through_the_loaders_configuration() {
        let root = tempfile::tempdir().expect("a temporary folder");
        plant(root.path(), "etc/ld.so.conf", "# ours\ninclude ld.so.conf.d/*.conf\n");
        plant(root.path(), "etc/ld.so.conf.d/cuda.conf", "/opt/cuda/lib64 # here\n");
        plant(root.path(), "etc/ld.so.conf.d/cuda.txt", "/opt/other\n");
        plant(root.path(), "opt/cuda/lib64/libnccl.so.2", "");
        plant(root.path(), "opt/other/libcudnn.so.9", "");
        plant(root.path(), "opt/mine/libcudnn.so", "");
        plant(root.path(), "usr/lib/libcudnn_ops.so.9", "");
        let tree = Tree::new(root.path());
        let folders = Folders::find(&tree, None);
        assert_eq!(folders.search("libnccl.so"), Some("/opt/cuda/lib64/libnccl.so.2".into()));
        assert_eq!(folders.search("libcudnn.so"), None);
        let folders = Folders::find(&tree, Some(OsStr::new("relative:/opt/mine")));
        assert_eq!(folders.search("libcudnn.so"), Some("/opt/mine/libcudnn.so".into()));
    }

    #[test]
    fn a_configuration_that_includes_itself_ends() {
        let root = tempfile::tempdir().expect("a temporary folder");
        plant(root.path(), "etc/ld.so.conf", "include /etc/ld.so.conf\n/opt/x\ninclude *\n");
        plant(root.path(), "opt/x/libnccl.so", "");
        let tree = Tree::new(root.path());
        assert_eq!(Folders::find(&tree, None).search("libnccl.so"), Some("/opt/x/libnccl.so".into()));
    }

    #[test]
    fn links_are_followed_and_one_to_nowhere_is_no_library() {
        let root = tempfile::tempdir().expect("a temporary folder");
        plant(root.path(), "usr/lib/libnccl.so.2.28.3", "");
        let link = |to, name| symlink(to, root.path().join("usr/lib").join(name)).expect("a link");
        link("libnccl.so.2.28.3", "libnccl.so");
        link("gone", "libcuda.so.1");
        let tree = Tree::new(root.path());
        let nccl = Some("/usr/lib/libnccl.so.2.28.3".into());
        assert_eq!(Folders::find(&tree, None).search("libnccl.so"), nccl);
        assert_eq!(Folders::find(&tree, None).search("libcuda.so.1"), None);
    }
}
