use std::fs;

use rustix::fs::MemfdFlags;

use super::*;
use crate::memfd::SEALS;

const SMALL: SegmentSize = SegmentSize { world: 3, areas: 3, own: 100, common: 7 };

fn create(size: SegmentSize) -> Segment {
    Segment::create(size).expect("there is memory for it")
}

fn number(segment: &Segment) -> RawFd {
    segment.descriptor().expect("it was created here")
}

fn why(result: Result<Segment, CommError>) -> String {
    result.map(drop).expect_err("it is no segment").to_string()
}

#[test]
fn areas_are_aligned_zero_and_do_not_overlap() {
    let segment = create(SMALL);
    let mut areas: Vec<Area> = (0..3).map(|index| segment.area(index)).collect();
    areas.push(segment.common());
    for (i, area) in areas.iter().enumerate() {
        assert_eq!(area.address() as usize % PAGE, 0);
        // SAFETY: nobody else uses this segment.
        let values = unsafe { area.write(0..area.len()) };
        assert!(values.iter().all(|&value| value == 0.0));
        values.fill(1.0 + i as f32);
    }
    for (i, area) in areas.iter().enumerate() {
        // SAFETY: as above.
        let values = unsafe { area.read(0..area.len()) };
        assert!(values.iter().all(|&value| value == 1.0 + i as f32));
    }
    assert_eq!(areas[3].len(), 7);
    assert!(segment.size().bytes().expect("valid").0 > 3 * 400);
}

#[test]
fn whoever_attaches_sees_the_same_values() {
    let segment = create(SMALL);
    let attached = Segment::attach(number(&segment)).expect("the same process");
    assert_eq!(attached.size(), SMALL);
    assert_eq!(attached.descriptor(), None);
    // SAFETY: nobody else uses this segment.
    unsafe {
        segment.common().write(2..3)[0] = 5.0;
        assert_eq!(attached.common().read(2..3), [5.0]);
    }
}

#[test]
fn a_rank_can_be_taken_once() {
    let segment = create(SMALL);
    let attached = Segment::attach(number(&segment)).expect("the same process");
    let first = segment.join(Rank(1)).expect("free");
    drop(first);
    let second = attached.join(Rank(1)).map(drop).expect_err("taken");
    assert!(second.to_string().ends_with("rank 1 is already taken"));
    let none = attached.join(Rank(3)).map(drop).expect_err("no such rank");
    assert!(none.to_string().contains("no rank 3 in a world of 3"));
}

#[test]
fn what_is_no_segment_is_refused_with_the_reason() {
    assert!(why(Segment::attach(-1)).contains("negative"));
    assert!(why(Segment::attach(900)).contains("file descriptor 900"));
    let file = fs::File::open("/proc/self/exe").expect("Linux");
    let text = why(Segment::attach(file.as_raw_fd()));
    assert!(text.contains("is none"), "{text}");

    let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memfd");
    assert!(why(Segment::attach(unsealed.as_raw_fd())).contains("not fixed"));
    rustix::fs::fcntl_add_seals(&unsealed, SEALS).expect("seal");
    assert!(why(Segment::attach(unsealed.as_raw_fd())).contains("0 bytes"));

    let empty = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memfd");
    rustix::fs::ftruncate(&empty, 10_000).expect("grow");
    rustix::fs::fcntl_add_seals(&empty, SEALS).expect("seal");
    assert!(why(Segment::attach(empty.as_raw_fd())).contains("does not begin as one"));
}

#[test]
fn another_version_or_size_is_refused_with_the_numbers() {
    let segment = create(SMALL);
    let header = segment.mapping.header();
    header.own.store(5000, Ordering::Relaxed);
    let text = why(Segment::attach(number(&segment)));
    assert!(text.contains("bytes where") && text.contains("own: 5000"), "{text}");
    header.own.store(u64::MAX, Ordering::Relaxed);
    assert!(why(Segment::attach(number(&segment))).contains("more than can be addressed"));
    header.version.store(VERSION + 1, Ordering::Relaxed);
    let text = why(Segment::attach(number(&segment)));
    let expected = format!("version {}; this program uses version {VERSION}", VERSION + 1);
    assert!(text.contains(&expected), "{text}");
}

#[test]
fn more_than_the_machine_has_is_refused_with_the_numbers() {
    let size = SegmentSize { world: 2, areas: 2, own: 1 << 50, common: 0 };
    let refused = Segment::create(size).map(drop).expect_err("a petabyte");
    let CommError::TooLarge { world: 2, needed, available } = refused else {
        panic!("{refused}");
    };
    assert!(needed.0 > 1 << 52 && available.0 < needed.0);
    let size = SegmentSize { own: usize::MAX / 2, ..size };
    assert!(matches!(Segment::create(size), Err(CommError::Segment { .. })));
    let size = SegmentSize { world: 0, ..SMALL };
    assert!(why(Segment::create(size)).contains("at least one rank"));
}

#[test]
fn a_segment_has_no_name_that_could_be_left_behind() {
    let segment = create(SMALL);
    let path = format!("/proc/self/fd/{}", number(&segment));
    let target = fs::read_link(&path).expect("it is open");
    assert_eq!(target.to_str(), Some("/memfd:paceline (deleted)"));
}
