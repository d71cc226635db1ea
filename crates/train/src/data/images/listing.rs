//! Which pictures there are.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::TrainError;
use crate::data::{Draw, Split};

/// Endings of files that are pictures.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// One in so many is held back for the test, where the folder does not say which.
const HELD_BACK: usize = 10;

/// Bytes of pictures that hosts compare: a second's worth.
const READ: u64 = 500_000_000;

/// Keeps the draws of splits apart from others.
const SPLIT: u64 = 0x5711;

/// The pictures of a split, class by class, in the order of their names. Names lie one after another: a million of them as
/// strings of their own would take several times the memory.
pub struct Listing {
    folders: Vec<PathBuf>,
    /// The first sample of each class.
    firsts: Vec<usize>,
    names: Vec<u8>,
    /// Where each name ends.
    ends: Vec<usize>,
}

impl Listing {
    /// Lists a split. Every class has at least one picture to learn from.
    pub fn open(folder: &Path, split: Split) -> Result<Self, TrainError> {
        let folders = Folders::find(folder)?;
        let mut listing =
            Self { folders: Vec::new(), firsts: Vec::new(), names: Vec::new(), ends: Vec::new() };
        for class in class_names(folder)? {
            let path = folders.of(split).join(&class);
            listing.firsts.push(listing.ends.len());
            for name in folders.pictures(&path, split)? {
                listing.names.extend(name.as_bytes());
                listing.ends.push(listing.names.len());
            }
            listing.folders.push(path);
        }
        if listing.ends.is_empty() {
            let what = "there is no picture for a test";
            return Err(TrainError::damaged(folder, what, "add some, or folders train and val"));
        }
        Ok(listing)
    }

    /// What sets it apart from other listings: classes and names.
    pub fn fingerprint(&self, digest: &mut Sha256) {
        for folder in &self.folders {
            digest.update(folder.file_name().unwrap_or_default().as_bytes());
            digest.update([0]);
        }
        digest.update(&self.names);
        self.firsts.iter().chain(&self.ends).for_each(|place| digest.update(place.to_le_bytes()));
    }

    /// What sets its pictures apart from others of the same names: the sizes of all, and the bytes of as many as are [`READ`] in all.
    pub fn checksum(&self, digest: &mut Sha256) -> Result<(), TrainError> {
        self.fingerprint(digest);
        let refused = |path: &Path| TrainError::system(format!("read {}", path.display()));
        let mut bytes = 0;
        for index in 0..self.len() {
            let (_, path) = self.sample(index);
            let size = fs::metadata(&path).map_err(refused(&path))?.len();
            digest.update(size.to_le_bytes());
            bytes += size;
        }
        // One in so many, that these are not more than are read in a moment.
        let every = bytes.div_ceil(READ).max(1) as usize;
        for index in (0..self.len()).step_by(every) {
            let (_, path) = self.sample(index);
            digest.update(fs::read(&path).map_err(refused(&path))?);
        }
        Ok(())
    }

    /// Samples.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// A sample's class and file.
    pub fn sample(&self, index: usize) -> (u32, PathBuf) {
        let class = self.firsts.partition_point(|&first| first <= index) - 1;
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        let name = OsStr::from_bytes(&self.names[begin..self.ends[index]]);
        (class as u32, self.folders[class].join(name))
    }
}

/// The classes: names of folders, in order.
pub fn class_names(folder: &Path) -> Result<Vec<OsString>, TrainError> {
    let folders = Folders::find(folder)?;
    let classes = names(&folders.train, |path| path.is_dir())?;
    if classes.is_empty() {
        let help = "put the pictures of each class into a folder of its own";
        return Err(TrainError::damaged(&folders.train, "there are no folders in it", help));
    }
    if let Some(test) = &folders.test {
        let strange = names(test, |path| path.is_dir())?.into_iter().find(|name| !classes.contains(name));
        if let Some(name) = strange {
            let what = format!("there is no such class in {}", folders.train.display());
            return Err(TrainError::damaged(
                &test.join(name),
                what,
                "take it away, or add pictures to learn from",
            ));
        }
    }
    Ok(classes)
}

/// Where the splits are.
struct Folders {
    train: PathBuf,
    /// `None` where all pictures lie together.
    test: Option<PathBuf>,
}

impl Folders {
    fn find(folder: &Path) -> Result<Self, TrainError> {
        let train = folder.join("train");
        if !train.is_dir() {
            return Ok(Self { train: folder.into(), test: None });
        }
        let test = ["val", "test"].map(|name| folder.join(name)).into_iter().find(|path| path.is_dir());
        if test.is_none() {
            let what = "there is a folder train, but neither val nor test";
            return Err(TrainError::damaged(
                folder,
                what,
                "add one, or leave train away and have the classes here",
            ));
        }
        Ok(Self { train, test })
    }

    fn of(&self, split: Split) -> &Path {
        match (split, &self.test) {
            (Split::Test, Some(test)) => test,
            _ => &self.train,
        }
    }

    /// The names of a class's pictures.
    fn pictures(&self, class: &Path, split: Split) -> Result<Vec<OsString>, TrainError> {
        // A test need not show every class.
        if split == Split::Test && self.test.is_some() && !class.is_dir() {
            return Ok(Vec::new());
        }
        let is_picture = |path: &Path| {
            let ending = path.extension().and_then(OsStr::to_str);
            ending.is_some_and(|ending| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
        };
        let mut pictures = names(class, is_picture)?;
        if let Some(name) = pictures.iter().find(|name| !class.join(name).is_file()) {
            let what = "it is named like a picture, but is not a file";
            return Err(TrainError::damaged(&class.join(name), what, "take it away"));
        }
        if pictures.is_empty() {
            let what = "there is no JPEG or PNG file in this class";
            return Err(TrainError::damaged(class, what, "add some, or take the folder away"));
        }
        if self.test.is_none() {
            let held_back = hold_back(&pictures);
            let mut number = 0..;
            pictures.retain(|_| held_back[number.next().expect("it has no end")] == (split == Split::Test));
        }
        Ok(pictures)
    }
}

/// Which of a class's pictures are for the test: a tenth, but at least one of several, by names alone, so that it stays the same
/// whatever the seed, and nearly so when pictures are added.
fn hold_back(names: &[OsString]) -> Vec<bool> {
    let key = |name: &OsString| {
        let bytes: Vec<u64> = name.as_bytes().iter().map(|&byte| byte.into()).collect();
        Draw::new(&[&bytes[..], &[SPLIT]].concat()).below(usize::MAX)
    };
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_cached_key(|&number| key(&names[number]));
    let count = if names.len() == 1 { 0 } else { (names.len() / HELD_BACK).max(1) };
    let mut held_back = vec![false; names.len()];
    order.into_iter().take(count).for_each(|number| held_back[number] = true);
    held_back
}

/// Names in a folder that are wanted, in order; hidden ones are not.
fn names(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<OsString>, TrainError> {
    let broken = |error: std::io::Error| {
        TrainError::damaged(
            folder,
            format!("it cannot be read: {error}"),
            "images:DIR wants a folder of folders",
        )
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(broken)? {
        let entry = entry.map_err(broken)?;
        if !entry.file_name().as_bytes().starts_with(b".") && wanted(&entry.path()) {
            names.push(entry.file_name());
        }
    }
    names.sort_unstable();
    Ok(names)
}
