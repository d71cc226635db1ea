//! CIFAR-10's records: made from strips where need be, and checked.

use std::io::Cursor;

use anyhow::{Context, Result, anyhow, bail, ensure};
use paceline_train::data::cifar10::{CLASSES, FILES, RECORD};
use sha2::{Digest, Sha256};

use super::members::{Members, TEST_LABELS, TRAIN_LABELS, strip_name};

/// Pixels of a picture.
const PIXELS: usize = 32 * 32;

/// What a data set must hold.
pub struct Expected<'a> {
    /// Records of each file.
    pub records: usize,
    /// Of each file.
    pub sha256: [&'a str; 6],
}

/// CIFAR-10, as its home page has it.
pub const CIFAR10: Expected<'static> = Expected {
    records: 10_000,
    sha256: [
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ],
};

impl Expected<'_> {
    /// Bytes of each file.
    pub fn size(&self) -> u64 {
        (self.records * RECORD) as u64
    }
}

/// The six files: as they are, or made of the npm package's strips and labels.
pub fn from_members(mut members: Members) -> Result<Vec<Vec<u8>>> {
    if FILES.iter().any(|name| members.contains_key(*name)) {
        let file = |name: &&str| members.remove(*name).ok_or_else(|| anyhow!("it has no {name}"));
        return FILES.iter().map(file).collect();
    }
    if FILES.iter().all(|name| !members.contains_key(&strip_name(name))) {
        bail!("it holds neither data_batch_1.bin nor data_batch_1.png");
    }
    let mut labels = read_labels(&members, TRAIN_LABELS)?;
    labels.extend(read_labels(&members, TEST_LABELS)?);
    let mut labels = labels.into_iter();
    let mut file = |name: &&str| {
        let strip = strip_name(name);
        let bytes = members.remove(&strip).ok_or_else(|| anyhow!("it has no {strip}"))?;
        let pixels = read_strip(&bytes).with_context(|| strip.clone())?;
        let mut records = Vec::with_capacity(pixels.len() / (3 * PIXELS) * RECORD);
        for picture in pixels.chunks_exact(3 * PIXELS) {
            records.push(labels.next().ok_or_else(|| anyhow!("it has fewer labels than pictures"))?);
            for channel in 0..3 {
                records.extend(picture.iter().skip(channel).step_by(3));
            }
        }
        Ok(records)
    };
    FILES.iter().map(&mut file).collect()
}

fn read_labels(members: &Members, name: &str) -> Result<Vec<u8>> {
    let bytes = members.get(name).ok_or_else(|| anyhow!("it has no {name}"))?;
    serde_json::from_slice(bytes).with_context(|| name.to_owned())
}

/// The pixels of a strip: a picture a row, its rows one after another.
fn read_strip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info()?;
    let (width, form) = (reader.info().width as usize, reader.output_color_type());
    ensure!(
        width == PIXELS && form == (png::ColorType::Rgb, png::BitDepth::Eight),
        "it is not a strip of pictures of 32x32 in 8-bit RGB"
    );
    let size = reader.output_buffer_size().filter(|&size| size <= super::members::MOST as usize);
    let mut pixels = vec![0; size.ok_or_else(|| anyhow!("it is too large"))?];
    reader.next_frame(&mut pixels)?;
    Ok(pixels)
}

/// Refuses files with too few or too many records, labels out of range, uneven classes, or other contents than expected.
pub fn check(files: &[Vec<u8>], expected: &Expected<'_>) -> Result<()> {
    let mut counts = [[0usize; CLASSES]; 2];
    for (name, bytes) in FILES.iter().zip(files) {
        ensure!(
            bytes.len() as u64 == expected.size(),
            "{name} has {} bytes, not the {} of {} records of {RECORD}",
            bytes.len(),
            expected.size(),
            expected.records
        );
        let test = usize::from(*name == FILES[5]);
        for (number, record) in bytes.chunks_exact(RECORD).enumerate() {
            let label = usize::from(record[0]);
            ensure!(label < CLASSES, "{name}: record {number} has the label {label}, but labels are 0 to 9");
            counts[test][label] += 1;
        }
    }
    for (counts, files, purpose) in [(&counts[0], 5, "to learn from"), (&counts[1], 1, "for the test")] {
        let each = files * expected.records / CLASSES;
        if let Some(class) = counts.iter().position(|&count| count != each) {
            bail!("class {class} has {} pictures {purpose}, not {each}", counts[class]);
        }
    }
    for ((name, bytes), wanted) in FILES.iter().zip(files).zip(expected.sha256) {
        let sum = sha256(bytes);
        ensure!(sum == wanted, "{name} has the SHA-256 {sum}, not {wanted}");
    }
    Ok(())
}

/// A checksum in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
