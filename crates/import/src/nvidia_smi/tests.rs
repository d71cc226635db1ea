use super::*;
use crate::ImportedRank;
use crate::sample::file_of;
use paceline_record::Rank;

const DMON: &str = "\
# gpu   pwr gtemp mtemp    sm   mem   enc   dec    fb
# Idx     W     C     C     %     %     %     %    MB
    0   200    64     -   100    41     0     0  1000
    1   100    60     -     0     0     0     0   500
    0   100    64     -    50    41     0     0  3000
# gpu   pwr gtemp mtemp    sm   mem   enc   dec    fb
# Idx     W     C     C     %     %     %     %    MB
    1     -    60     -     -     -     0     0   600
";

const QUERY: &str = "\
timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W]
2019/03/05 14:12:01.533, 0, 100 %, 1000 MiB, 16160 MiB, 200.00 W
2019/03/05 14:12:01.535, 1, 0 %, 500 MiB, 16160 MiB, 100.00 W
2019/03/05 14:12:02.533, 0, 50 %, 3000 MiB, 16160 MiB, 100.00 W
2019/03/05 14:12:02.535, 1, [N/A], 600 MiB, 16160 MiB, [Not Supported]
";

fn read_text(text: &str) -> Monitor {
    read(file_of(text).path()).expect("a log")
}

fn expected() -> [DeviceUse; 2] {
    let one = DeviceUse {
        index: 0,
        samples: 2,
        peak_memory: Some(Bytes(3000 << 20)),
        mean_memory: Some(Bytes(2000 << 20)),
        utilisation: Some(0.75),
        utilisation_p95: Some(1.0),
        low: Some(0.0),
        power: Some(150.0),
        peak_power: Some(200.0),
    };
    let other = DeviceUse {
        index: 1,
        peak_memory: Some(Bytes(600 << 20)),
        mean_memory: Some(Bytes(550 << 20)),
        utilisation: Some(0.0),
        utilisation_p95: Some(0.0),
        low: Some(1.0),
        power: Some(100.0),
        peak_power: Some(100.0),
        ..one
    };
    [one, other]
}

#[test]
fn every_way_of_printing_gives_the_same_numbers() {
    let nounits = QUERY.replace(" MiB,", ",").replace(" %,", ",").replace(" W\n", "\n");
    let timed = DMON
        .replace("# gpu", "#Time      gpu")
        .replace("# Idx", "#HH:MM:SS  Idx")
        .replace("\n    ", "\n 14:12:01   ");
    let commas = "# gpu, pwr, sm, fb\n# Idx, W, %, MB\n0, 200, 100, 1000\n1, 100, 0, 500\n0, 100, 50, 3000\n1, -, -, 600\n";
    for text in [DMON, QUERY, &nounits, &timed, commas, &QUERY.replace('\n', "\r\n")] {
        assert!(recognise(text.as_bytes()), "{text}");
        let monitor = read_text(text);
        assert_eq!(monitor.devices, expected(), "{text}");
        assert_eq!(monitor.warnings, [""; 0]);
    }
}

#[test]
fn utilisation_has_a_mean_a_percentile_and_a_fraction_of_idle_samples() {
    // 100 samples: 20 of nothing, 75 of 50 %, 5 of 100 %.
    let mut text = String::from("index, utilization.gpu [%], memory.used [MiB]\n");
    for (count, percent) in [(20, 0), (75, 50), (5, 100)] {
        (0..count).for_each(|_| text += &format!("0, {percent} %, 4096 MiB\n"));
    }
    let monitor = read_text(&text);
    let one = monitor.devices[0];
    assert!((one.utilisation.expect("use") - 0.425).abs() < 1e-9, "{one:?}");
    assert_eq!((one.utilisation_p95, one.low), (Some(0.5), Some(0.2)));
    let screen = monitor.render();
    for expected in ["42.5", "50.0", "20.0", "4.29 GB", "device 0 is sometimes idle"] {
        assert!(screen.contains(expected), "{expected} in {screen}");
    }
}

#[test]
fn without_a_header_columns_are_identified_by_units() {
    let rows = QUERY.split_once('\n').expect("a header").1;
    assert!(recognise(rows.as_bytes()));
    let monitor = read_text(rows);
    assert_eq!(monitor.devices[0].utilisation, Some(0.75));
    assert_eq!(monitor.devices[0].peak_memory, None, "of two memories none says which it is");
    assert!(monitor.warnings[0].contains("by their units"));
    let monitor = read_text(&rows.replace(", 16160 MiB", ""));
    assert_eq!(monitor.devices[0].peak_memory, Some(Bytes(3000 << 20)));
    let bare = rows.replace(" MiB,", ",").replace(" %,", ",").replace(" W\n", "\n");
    assert!(!recognise(bare.as_bytes()));
    let error = read(file_of(&bare).path()).expect_err("nothing tells columns apart").to_string();
    assert!(error.contains("leave out noheader or nounits"), "{error}");
}

#[test]
fn devices_without_a_number_are_distinguished_by_name() {
    let text = "uuid, memory.used [MiB]\nGPU-b, 10 MiB\nGPU-a, 20 MiB\nGPU-b, 30 MiB\n";
    let monitor = read_text(text);
    assert_eq!(
        monitor.devices.iter().map(|device| device.peak_memory).collect::<Vec<_>>(),
        [Some(Bytes(30 << 20)), Some(Bytes(20 << 20))]
    );
    assert!(monitor.warnings[0].contains("does not number devices"));
    assert_eq!(monitor.devices[0].utilisation, None);
    let alone = read_text("utilization.gpu [%], memory.used [MiB]\n5 %, 10 MiB\n");
    assert!(alone.warnings[0].contains("does not identify devices"));
}

#[test]
fn memory_goes_to_the_ranks() {
    let rank = |rank| ImportedRank { rank: Rank(rank), ..ImportedRank::default() };
    let mut run = Imported { ranks: vec![rank(1), rank(2)], ..Imported::default() };
    read_text(DMON).attach(&mut run);
    assert_eq!(run.ranks[0].peak_device, Some(Bytes(600 << 20)));
    assert_eq!(run.ranks[1].peak_device, None);
    assert_eq!(run.origin().devices, expected(), "and how the devices were used is kept");
    assert!(run.warnings.iter().any(|warning| warning.starts_with("skipped 1 devices of nvidia-smi")));
}

#[test]
fn damaged_rows_cost_only_themselves_and_nothing_is_an_error() {
    let monitor =
        read_text(&DMON.replace("    0   100", "    0   100   7").replace("    1   100", " 99999   100"));
    assert_eq!(monitor.devices[0].samples, 1);
    assert!(monitor.warnings[0].starts_with("skipped 2 unreadable lines"), "{:?}", monitor.warnings);
    for text in ["", "hello\n", "# gpu pwr\n# Idx W\n"] {
        assert!(read(file_of(text).path()).is_err(), "{text}");
    }
    for text in ["", "a,b\n", "# a comment, about a gpu\n", "name,value\n1,2\n", "Model:  x\n"] {
        assert!(!recognise(text.as_bytes()), "{text}");
    }
}
