use std::fs;

use super::*;
use crate::data::tests::write_cifar10;

/// Planes in which every pixel differs.
fn planes() -> Vec<u8> {
    (0..3 * PLANE).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn a_crop_is_a_window_on_the_padded_picture() {
    let planes = planes();
    for (top, left, flip) in [(4, 4, false), (4, 4, true), (0, 8, false), (8, 0, true), (3, 5, true)] {
        let mut pixels = [1; 3 * PLANE];
        Crop { top, left, flip }.cut(&planes, |pixel| pixel, pixels.as_chunks_mut().0);
        for (at, &pixel) in pixels.iter().enumerate() {
            let (y, x, channel) = (at / 96, at / 3 % 32, at % 3);
            let x = if flip { 31 - x } else { x };
            let inside = (4..36).contains(&(y + top)) && (4..36).contains(&(x + left));
            let expected =
                if inside { planes[channel * PLANE + (y + top - 4) * 32 + x + left - 4] } else { 0 };
            assert_eq!(pixel, expected, "{top} {left} {flip}: row {y}, column {x}, channel {channel}");
        }
    }
}

#[test]
fn all_crops_are_drawn() {
    let mut seen = [[[0; 2]; 9]; 9];
    for number in 0..4000 {
        let crop = Crop::draw(Draw::new(&[number]));
        seen[crop.top][crop.left][usize::from(crop.flip)] += 1;
    }
    assert!(seen.as_flattened().as_flattened().iter().all(|&times| times > 5), "{seen:?}");
}

fn open(folder: &Path) -> Pictures {
    Pictures::new(Arc::new(Cifar10::open(folder, Split::Train).expect("good files")), (32, 32))
}

#[test]
fn pictures_are_normalised_with_channels_last() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 3);
    let mut record = planes();
    record.insert(0, 9);
    let path = folder.path().join("data_batch_2.bin");
    fs::write(&path, record.repeat(3)).expect("a writable folder");
    let mut image = vec![0.0; 3 * PLANE];
    assert_eq!(open(folder.path()).read(4, Look::Plain, &mut image).expect("good files"), 9);
    let red_of_third_pixel = (f32::from(record[1 + 2]) / 255.0 - 0.4914) / 0.2470;
    let blue_of_second_row = (f32::from(record[1 + 2 * PLANE + 32]) / 255.0 - 0.4465) / 0.2616;
    assert_eq!((image[2 * 3], image[32 * 3 + 2]), (red_of_third_pixel, blue_of_second_row));
}

#[test]
fn pictures_are_resized_to_what_the_network_reads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 2);
    let files = Arc::new(Cifar10::open(folder.path(), Split::Train).expect("good files"));
    let (mut plain, mut large) = (vec![0.0; 3 * PLANE], vec![0.0; 3 * 48 * 64]);
    Pictures::new(files.clone(), (32, 32)).read(7, Look::Plain, &mut plain).expect("good files");
    Pictures::new(files, (48, 64)).read(7, Look::Plain, &mut large).expect("good files");
    // All its pixels are equal, so they are at any size.
    assert!(large.chunks_exact(3).all(|pixel| pixel == &plain[..3]));
}

fn refusal(folder: &Path) -> String {
    check(folder).expect_err("damaged data").to_string()
}

#[test]
fn a_file_that_was_cut_short_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    check(folder.path()).expect("good files");
    let path = folder.path().join("data_batch_3.bin");
    // In the middle of a record, and between two.
    for size in [4 * RECORD - 100, 3 * RECORD] {
        fs::File::options()
            .write(true)
            .open(&path)
            .expect("a file")
            .set_len(size as u64)
            .expect("a shorter file");
        let message = refusal(folder.path());
        assert!(message.contains("data_batch_3.bin: ") && message.contains(&size.to_string()), "{message}");
        assert!(message.contains("paceline data cifar10"), "{message}");
    }
}

#[test]
fn files_of_something_else_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in FILES {
        fs::write(folder.path().join(name), "something else").expect("a writable folder");
    }
    assert!(refusal(folder.path()).contains("no whole number of records"));
    for name in FILES {
        fs::write(folder.path().join(name), "").expect("a writable folder");
    }
    assert!(refusal(folder.path()).contains("no whole number of records"));
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 1);
    fs::remove_file(folder.path().join("test_batch.bin")).expect("a file");
    assert!(refusal(folder.path()).contains("test_batch.bin: "), "{}", refusal(folder.path()));
}

#[test]
fn a_label_out_of_range_is_named_with_its_record() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let path = folder.path().join("data_batch_5.bin");
    let mut bytes = fs::read(&path).expect("a file");
    bytes[2 * RECORD] = 10;
    fs::write(&path, bytes).expect("a writable file");
    let message = refusal(folder.path());
    assert!(message.contains("data_batch_5.bin: record 2 has the label 10"), "{message}");
    let read = open(folder.path()).read(4 * 4 + 2, Look::Plain, &mut [0.0; 3 * PLANE]);
    assert_eq!(read.expect_err("damaged data").to_string(), message);
}
