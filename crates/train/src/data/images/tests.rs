use std::fs;
use std::path::PathBuf;

use png::{BitDepth, ColorType};
use tempfile::TempDir;

use super::*;
use crate::data::{Data, Draw, Split, TestSet};

const RGB: &[u8] = include_bytes!("fixtures/rgb.jpg");
const PROGRESSIVE: &[u8] = include_bytes!("fixtures/progressive.jpg");
const CMYK: &[u8] = include_bytes!("fixtures/cmyk.jpg");
const GREY: &[u8] = include_bytes!("fixtures/grey.jpg");

/// A PNG of one row, of these bytes.
fn png(width: u32, colour: ColorType, depth: BitDepth, bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, 1);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    if colour == ColorType::Indexed {
        encoder.set_palette(vec![1, 2, 3, 4, 5, 6]);
    }
    let mut writer = encoder.write_header().expect("a good header");
    writer.write_image_data(bytes).expect("a whole picture");
    writer.finish().expect("a whole picture");
    file
}

fn decode(bytes: &[u8]) -> Result<((usize, usize), Vec<u8>), String> {
    let mut decoder = Decoder::default();
    let size = decoder.decode(bytes)?;
    Ok((size, decoder.pixels().to_vec()))
}

#[test]
fn every_kind_of_jpeg_becomes_rgb() {
    let (red, blue, light, dark) = ([230, 20, 20], [20, 20, 230], [200; 3], [50; 3]);
    for (name, bytes, left, right) in [
        ("rgb", RGB, red, blue),
        ("progressive", PROGRESSIVE, red, blue),
        ("cmyk", CMYK, red, blue),
        ("grey", GREY, light, dark),
    ] {
        let (size, pixels) = decode(bytes).expect(name);
        assert_eq!(size, (16, 32), "{name}");
        for (x, expected) in [(4, left), (28, right)] {
            let pixel = &pixels[(8 * 32 + x) * 3..][..3];
            let near = pixel.iter().zip(expected).all(|(&got, wanted): (&u8, u8)| got.abs_diff(wanted) < 8);
            assert!(near, "{name}: {pixel:?} at {x}, not {expected:?}");
        }
    }
}

#[test]
fn every_kind_of_png_becomes_rgb() {
    use BitDepth::{Eight, One, Sixteen};
    for (colour, depth, bytes, expected) in [
        (ColorType::Rgb, Eight, &[9, 8, 7, 6, 5, 4][..], [9, 8, 7, 6, 5, 4]),
        (ColorType::Rgba, Eight, &[9, 8, 7, 0, 6, 5, 4, 255], [9, 8, 7, 6, 5, 4]),
        (ColorType::Grayscale, Eight, &[9, 4], [9, 9, 9, 4, 4, 4]),
        (ColorType::Grayscale, One, &[0b1000_0000], [255, 255, 255, 0, 0, 0]),
        (ColorType::GrayscaleAlpha, Eight, &[9, 0, 4, 1], [9, 9, 9, 4, 4, 4]),
        (ColorType::Indexed, Eight, &[1, 0], [4, 5, 6, 1, 2, 3]),
        (ColorType::Rgb, Sixteen, &[9, 1, 8, 1, 7, 1, 6, 1, 5, 1, 4, 1], [9, 8, 7, 6, 5, 4]),
    ] {
        let (size, pixels) = decode(&png(2, colour, depth, bytes)).expect("a good file");
        assert_eq!((size, &pixels[..]), ((1, 2), &expected[..]), "{colour:?} {depth:?}");
    }
}

#[test]
fn a_decoder_keeps_nothing_of_the_picture_before() {
    let mut decoder = Decoder::default();
    decoder.decode(RGB).expect("a good file");
    decoder.decode(&png(1, ColorType::Rgb, BitDepth::Eight, &[1, 2, 3])).expect("a good file");
    assert_eq!(decoder.pixels(), [1, 2, 3]);
}

#[test]
fn files_that_are_damaged_or_something_else_are_refused() {
    let picture = png(2, ColorType::Rgb, BitDepth::Eight, &[1, 2, 3, 4, 5, 6]);
    for (bytes, what) in [
        (&RGB[..RGB.len() / 2], "JPEG"),
        (&RGB[..RGB.len() - 20], "JPEG"),
        (&PROGRESSIVE[..PROGRESSIVE.len() - 30], "JPEG"),
        (&RGB[..2], "JPEG"),
        (&picture[..picture.len() / 2], "PNG"),
        (&picture[..8], "PNG"),
        (b"GIF89a", "neither"),
        (b"", "neither"),
    ] {
        let message = decode(bytes).expect_err("a damaged file");
        assert!(message.contains(what), "{message}");
    }
}

#[test]
fn a_small_file_that_claims_a_huge_picture_is_refused_before_memory_is_taken() {
    let mut bomb = png(2, ColorType::Rgb, BitDepth::Eight, &[1, 2, 3, 4, 5, 6]);
    bomb[16..24].copy_from_slice(&[0, 0, 0x3f, 0, 0, 0, 0x3f, 0]);
    // The header's checksum, over its kind and contents.
    let checksum = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&checksum.to_be_bytes());
    let message = decode(&bomb).expect_err("260 million pixels");
    assert!(message.contains("16128x16128"), "{message}");
    let mut jpeg = RGB.to_vec();
    let header = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame header");
    jpeg[header + 5..][..4].copy_from_slice(&[0x3f, 0, 0x3f, 0]);
    let message = decode(&jpeg).expect_err("260 million pixels");
    assert!(message.contains("16128x16128"), "{message}");
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

#[test]
fn the_middle_is_seven_eighths_of_the_largest_window() {
    let view = View::centre((400, 800), (224, 224));
    assert!(!view.flip);
    let window = view.window;
    assert_eq!((window.height, window.width, window.top, window.left), (350.0, 350.0, 25.0, 225.0));
    let window = View::centre((400, 800), (100, 400)).window;
    assert_eq!((window.height, window.width), (175.0, 700.0));
}

#[test]
fn random_pieces_lie_in_the_picture_and_have_all_sizes() {
    let (height, width) = (375, 500);
    let mut areas = Vec::new();
    let mut flips = 0;
    for number in 0..2000 {
        let View { window, flip } = View::draw((height, width), (224, 224), Draw::new(&[number]));
        assert!(window.top + window.height <= height as f64 && window.left + window.width <= width as f64);
        assert!(window.top >= 0.0 && window.left >= 0.0);
        let stretch = window.width / window.height;
        assert!((0.73..1.37).contains(&stretch), "{window:?}");
        areas.push(window.width * window.height / (height * width) as f64);
        flips += u32::from(flip);
    }
    areas.sort_by(f64::total_cmp);
    assert!(
        areas[0] > 0.078 && areas[100] < 0.15 && areas[1900] > 0.75,
        "{:?}",
        (areas[0], areas[100], areas[1900])
    );
    assert!((900..1100).contains(&flips), "{flips}");
}

#[test]
fn a_picture_of_extreme_form_is_seen_in_the_middle() {
    let views = (0..50).map(|number| View::draw((10, 4000), (224, 224), Draw::new(&[number])).window);
    let middle =
        views.filter(|window| (window.height, window.width, window.left) == (10.0, 10.0, 1995.0)).count();
    assert!(middle > 0, "no try fits");
}

/// A folder of files.
fn write(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a writable folder");
        fs::write(path, bytes).expect("a writable folder");
    }
    folder
}

fn files(listing: &Listing) -> Vec<(u32, PathBuf)> {
    (0..listing.len()).map(|index| listing.sample(index)).collect()
}

#[test]
fn folders_are_classes_in_the_order_of_their_names() {
    let folder = write(&[
        ("train/dog/b.jpg", RGB),
        ("train/dog/a.PNG", RGB),
        ("train/cat/1.jpeg", RGB),
        ("train/cat/notes.txt", b"no picture"),
        ("train/.hidden/1.jpg", RGB),
        ("val/dog/z.jpg", RGB),
    ]);
    let path = folder.path();
    let listed = |split| files(&Listing::open(path, split).expect("a good folder"));
    assert_eq!(
        listed(Split::Train),
        [
            (0, path.join("train/cat/1.jpeg")),
            (1, path.join("train/dog/a.PNG")),
            (1, path.join("train/dog/b.jpg"))
        ]
    );
    assert_eq!(listed(Split::Test), [(1, path.join("val/dog/z.jpg"))]);
    let data: Data = format!("images:{}", path.display()).parse().expect("a known name");
    data.check().expect("a good folder");
    assert_eq!(data.classes().expect("a good folder"), 2);
    assert_eq!(data.samples(Split::Train).expect("a good folder"), 3);
}

#[test]
fn a_tenth_of_each_class_is_held_back_where_nothing_says_which() {
    let names: Vec<String> = (0..43).map(|number| format!("a/{number}.jpg")).collect();
    let mut all: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), RGB)).collect();
    all.extend([("b/1.jpg", RGB), ("b/2.jpg", RGB), ("c/alone.jpg", RGB)]);
    let folder = write(&all);
    let listed = |split| files(&Listing::open(folder.path(), split).expect("a good folder"));
    let (train, test) = (listed(Split::Train), listed(Split::Test));
    let of_class = |files: &[(u32, PathBuf)], class| files.iter().filter(|file| file.0 == class).count();
    assert_eq!([0, 1, 2].map(|class| of_class(&train, class)), [39, 1, 1]);
    assert_eq!([0, 1, 2].map(|class| of_class(&test, class)), [4, 1, 0]);
    assert!(test.iter().all(|file| !train.contains(file)));
    assert_eq!(test, listed(Split::Test), "it is the same each time");
}

/// What is wrong with a folder.
fn refusal(folder: &TempDir) -> String {
    let data: Data = format!("images:{}", folder.path().display()).parse().expect("a known name");
    data.check().expect_err("a bad folder").to_string()
}

#[test]
fn folders_that_cannot_be_used_are_refused_by_name() {
    let empty_class = write(&[("cat/1.jpg", RGB), ("dog/notes.txt", b"")]);
    assert!(refusal(&empty_class).contains("/dog: there is no JPEG or PNG"), "{}", refusal(&empty_class));
    let no_classes = write(&[("1.jpg", RGB)]);
    assert!(refusal(&no_classes).contains("there are no folders"), "{}", refusal(&no_classes));
    let no_test = write(&[("train/cat/1.jpg", RGB)]);
    assert!(refusal(&no_test).contains("neither val nor test"), "{}", refusal(&no_test));
    let strange = write(&[("train/cat/1.jpg", RGB), ("test/cow/1.jpg", RGB)]);
    assert!(refusal(&strange).contains("test/cow: there is no such class"), "{}", refusal(&strange));
    let too_few = write(&[("cat/1.jpg", RGB)]);
    assert!(refusal(&too_few).contains("for a test"), "{}", refusal(&too_few));
    let gone = write(&[]);
    fs::remove_dir(gone.path()).expect("an empty folder");
    assert!(refusal(&gone).contains("cannot be read"), "{}", refusal(&gone));
}

#[test]
fn a_picture_is_cropped_resized_and_normalised() {
    let folder = write(&[("train/red/1.jpg", RGB), ("test/red/1.jpg", RGB)]);
    let data: Data = format!("images:{}", folder.path().display()).parse().expect("a known name");
    let mut test = TestSet::open(&data, (8, 16), 1, 0, 2).expect("a good folder");
    let (batch, live) = test.batch(0).expect("a good picture");
    assert_eq!((batch.images.len(), live, batch.labels), (2 * 8 * 16 * 3, 1, &[0, 0][..]));
    let value = |channel: usize, byte: f32| (byte / 255.0 - MEAN[channel]) / DEVIATION[channel];
    for (channel, (left, right)) in [(230.0, 20.0), (20.0, 20.0), (20.0, 230.0)].into_iter().enumerate() {
        let at = |x: usize| batch.images[(4 * 16 + x) * 3 + channel];
        assert!((at(1) - value(channel, left)).abs() < 0.2, "{}", at(1));
        assert!((at(14) - value(channel, right)).abs() < 0.2, "{}", at(14));
    }
}

#[test]
fn a_picture_is_seen_in_a_mirror_half_of_the_time() {
    let folder = write(&[("cat/1.jpg", RGB), ("cat/2.jpg", RGB)]);
    let files = Arc::new(Listing::open(folder.path(), Split::Train).expect("a good folder"));
    let mut pictures = Pictures::new(files, (8, 8));
    let mut image = vec![0.0; 8 * 8 * 3];
    let mut more_red = |epoch| {
        pictures.read(0, Look::varied(1, epoch, 0), &mut image).expect("a good picture");
        // Where the whole is seen, red is on the left, or on the right in a mirror.
        image[0] - image[7 * 3]
    };
    let differences: Vec<f32> = (0..40).map(&mut more_red).collect();
    let count = |holds: fn(&f32) -> bool| differences.iter().filter(|value| holds(value)).count();
    assert!(count(|&value| value > 1.0) > 5 && count(|&value| value < -1.0) > 5, "{differences:?}");
}

#[test]
fn a_picture_that_cannot_be_read_is_named() {
    let folder = write(&[("train/cat/1.jpg", &RGB[..100]), ("test/cat/1.jpg", RGB)]);
    let files = Arc::new(Listing::open(folder.path(), Split::Train).expect("a good folder"));
    let read = || {
        let result = Pictures::new(files.clone(), (8, 8)).read(0, Look::Plain, &mut [0.0; 192]);
        result.expect_err("a damaged file").to_string()
    };
    assert!(read().contains("train/cat/1.jpg: it is not a good JPEG"), "{}", read());
    fs::remove_file(folder.path().join("train/cat/1.jpg")).expect("a file");
    assert!(read().contains("train/cat/1.jpg: it cannot be read"), "{}", read());
}
