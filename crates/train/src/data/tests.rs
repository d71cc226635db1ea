use std::fs;
use std::path::Path;

use super::cifar10::FILES;
use super::*;

/// A data set like CIFAR-10 with `each` records a file. Labels count up; every pixel of record n has the value n.
pub(crate) fn write_cifar10(folder: &Path, each: usize) {
    for (file, name) in FILES.into_iter().enumerate() {
        let record = |number: usize| {
            let mut record = vec![number as u8; 3073];
            record[0] = (number % 10) as u8;
            record
        };
        let records: Vec<u8> = (file * each..(file + 1) * each).flat_map(record).collect();
        fs::write(folder.join(name), records).expect("a writable folder");
    }
}

/// The name under which a folder is CIFAR-10.
pub(crate) fn cifar10(folder: &Path) -> Data {
    format!("cifar10:{}", folder.display()).parse().expect("a known name")
}

#[test]
fn names_say_form_and_classes() {
    for (name, shape, classes, samples) in [
        ("synthetic:cifar10", Shape::new(32, 32, 3), 10, 50_000),
        ("synthetic:imagenet", Shape::new(224, 224, 3), 1000, 1_281_167),
        ("synthetic:96x64x3", Shape::new(96, 64, 3), 10, 50_000),
    ] {
        let data: Data = name.parse().expect(name);
        assert_eq!((data.shape(), data.to_string().as_str()), (shape, name));
        assert_eq!(data.classes().expect("no disk is read"), classes);
        assert_eq!(data.samples(Split::Train).expect("no disk is read"), samples);
    }
}

#[test]
fn bad_names_are_refused_with_the_good_ones() {
    for name in [
        "",
        "cifar10",
        "cifar10:",
        "mnist:data",
        "synthetic:",
        "synthetic:32",
        "synthetic:0x3x3",
        "synthetic:9x99999x3",
    ] {
        let message = name.parse::<Data>().expect_err(name).to_string();
        assert!(message.contains("synthetic:cifar10") && message.contains("cifar10:DIR"), "{message}");
    }
}

#[test]
fn cifar10_knows_its_size() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 7);
    let data = cifar10(folder.path());
    data.check().expect("good files");
    let samples = |split| data.samples(split).expect("good files");
    assert_eq!((samples(Split::Train), samples(Split::Test)), (35, 7));
}

#[test]
fn a_network_with_too_few_classes_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 7);
    let error =
        TestSet::open(&cifar10(folder.path()), (32, 32), 9, 0, 4).err().expect("a label of 9 has no output");
    assert!(error.to_string().contains("10 classes"), "{error}");
}
