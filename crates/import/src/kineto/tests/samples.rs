//! Real traces, where they are present: totals as `peers/totals_kineto.py` counts them.

use std::path::PathBuf;

use super::*;

fn folder() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let places = ["../../../shared/samples/kineto", "../../../../shared/samples/kineto"];
    places.iter().map(|place| root.join(place)).find(|folder| folder.is_dir())
}

/// How often, how many nanoseconds, how many bytes.
type Total = (u64, u64, u64);

struct Sample {
    file: &'static str,
    rank: Option<u32>,
    world: Option<u32>,
    steps: (u64, u64),
    kinds: &'static [(Kind, Total)],
}

const SAMPLES: [Sample; 9] = [
    Sample {
        file: "alexnet_single_gpu",
        rank: Some(0),
        world: None,
        steps: (0, 0),
        kinds: &[
            (Kind::Compute, (79, 10_692_000, 0)),
            (Kind::CopyIn, (16, 55_503_000, 244_403_360)),
            (Kind::Fill, (3, 8_000, 21_760)),
            (Kind::Call, (361, 42_297_605_000, 0)),
            (Kind::Operator, (359, 140_021_746_000, 0)),
            (Kind::Range, (49, 81_940_372_000, 0)),
        ],
    },
    Sample {
        file: "cpu_only_gloo",
        rank: Some(34),
        world: Some(300),
        steps: (1, 210_109_162),
        kinds: &[
            (Kind::Collective, (10, 2_135_455_918, 48_073_640)),
            (Kind::Operator, (4, 3_964, 0)),
            (Kind::Range, (1, 210_109_162, 0)),
        ],
    },
    Sample {
        file: "nccl_args_rank0of2",
        rank: Some(0),
        world: Some(2),
        steps: (3, 667_105_339),
        kinds: &[
            (Kind::Compute, (2_679, 115_655_847, 0)),
            (Kind::Collective, (21, 46_876_493, 307_323_096)),
            (Kind::CopyDevice, (960, 2_262_781, 307_323_096)),
            (Kind::Fill, (114, 390_717, 409_141_005)),
            (Kind::Call, (8_740, 44_633_816, 0)),
            (Kind::Operator, (14_346, 1_419_306_842, 0)),
            (Kind::Range, (72, 2_058_050_991, 0)),
        ],
    },
    Sample {
        file: "no_distributed_info",
        rank: None,
        world: None,
        steps: (1, 75_473_000),
        kinds: &[(Kind::Operator, (2_424, 57_220_000, 0)), (Kind::Range, (43, 193_329_000, 0))],
    },
    Sample {
        file: "ns_resolution",
        rank: Some(0),
        world: Some(1),
        steps: (5, 394_140_808),
        kinds: &[
            (Kind::Compute, (4_350, 468_153_602, 0)),
            (Kind::CopyDevice, (1_600, 3_715_404, 512_205_160)),
            (Kind::Fill, (145, 585_435, 287_705_000)),
            (Kind::Call, (15_329, 361_167_046, 0)),
            (Kind::Operator, (23_910, 927_291_410, 0)),
            (Kind::Range, (85, 1_097_424_701, 0)),
        ],
    },
    Sample {
        file: "sampled_rank-0",
        rank: Some(0),
        world: Some(128),
        steps: (2, 1_230_240_000),
        kinds: &[
            (Kind::Compute, (1_144, 210_320_000, 0)),
            (Kind::Collective, (10, 396_199_000, 0)),
            (Kind::CopyIn, (24, 877_000, 4_866_112)),
            (Kind::CopyOut, (8, 16_000, 6_115)),
            (Kind::CopyDevice, (8, 404_000, 209_194_904)),
            (Kind::Fill, (10, 28_000, 8_030_732)),
            (Kind::Call, (1_204, 11_050_000, 0)),
            (Kind::Operator, (2_329, 762_503_000, 0)),
            (Kind::Range, (73, 3_168_286_000, 0)),
        ],
    },
    Sample {
        file: "sampled_rank-1",
        rank: Some(1),
        world: Some(128),
        steps: (2, 1_238_543_000),
        kinds: &[
            (Kind::Compute, (1_094, 271_973_000, 0)),
            (Kind::Collective, (10, 379_053_000, 0)),
            (Kind::CopyIn, (24, 12_130_000, 63_474_164)),
            (Kind::CopyOut, (8, 16_000, 2_396)),
            (Kind::CopyDevice, (8, 4_327_000, 3_298_965_512)),
            (Kind::Fill, (10, 31_000, 856)),
            (Kind::Call, (1_154, 9_602_000, 0)),
            (Kind::Operator, (2_302, 775_959_000, 0)),
            (Kind::Range, (65, 3_201_477_000, 0)),
        ],
    },
    Sample {
        file: "ddp_2ranks/rank0",
        rank: Some(0),
        world: Some(2),
        steps: (3, 382_869_897),
        kinds: &[
            (Kind::Collective, (12, 224_986_285, 0)),
            (Kind::Operator, (20_391, 754_844_538, 0)),
            (Kind::Range, (12, 543_623_389, 0)),
        ],
    },
    Sample {
        file: "ddp_2ranks/rank1",
        rank: Some(1),
        world: Some(2),
        steps: (3, 384_813_998),
        kinds: &[
            (Kind::Collective, (12, 86_290_859, 0)),
            (Kind::Operator, (20_391, 731_835_681, 0)),
            (Kind::Range, (12, 472_216_241, 0)),
        ],
    },
];

fn total(trace: &Trace, kind: Kind) -> Total {
    let of_kind = || trace.slices.iter().filter(|slice| slice.kind == kind);
    let bytes = of_kind().filter_map(|slice| slice.bytes).map(|bytes| bytes.0).sum();
    (of_kind().count() as u64, of_kind().map(|slice| slice.end.0 - slice.begin.0).sum(), bytes)
}

#[test]
fn real_traces_have_the_totals_that_an_independent_count_gives() {
    let Some(folder) = folder() else { return };
    for sample in &SAMPLES {
        let path = folder.join(format!("{}.json.gz", sample.file));
        let trace = read(&path).unwrap();
        assert!(recognise(&open::head(&path, 1 << 16).unwrap()), "{}", sample.file);
        assert_eq!((trace.rank, trace.world), (sample.rank.map(Rank), sample.world), "{}", sample.file);
        let steps = trace.steps.iter().map(|step| step.end.0 - step.begin.0).sum();
        assert_eq!((trace.steps.len() as u64, steps), sample.steps, "{}: steps", sample.file);
        for &(kind, expected) in sample.kinds {
            assert_eq!(total(&trace, kind), expected, "{}: {kind:?}", sample.file);
        }
        let counted: u64 = sample.kinds.iter().map(|(_, total)| total.0).sum();
        assert_eq!(trace.slices.len() as u64, counted, "{}: nothing else", sample.file);
        assert_eq!(trace.collectives.len() as u64, total(&trace, Kind::Collective).0, "{}", sample.file);
        assert_eq!(trace.clock, Clock::Epoch, "{}", sample.file);
    }
}

#[test]
fn two_ranks_of_one_host_meet_on_one_clock() {
    let Some(folder) = folder() else { return };
    let ranks = [0, 1].map(|rank| read(&folder.join(format!("ddp_2ranks/rank{rank}.json.gz"))).unwrap());
    assert_eq!(ranks[0].host, ranks[1].host);
    for (left, right) in ranks[0].steps.iter().zip(&ranks[1].steps) {
        assert_eq!(left.number, right.number);
        assert!(left.begin < right.end && right.begin < left.end, "step {} at the same time", left.number);
    }
}
