use super::*;

#[test]
fn words_stand_left_and_numbers_right() {
    let mut table = Table::new([("name", Align::Left), ("n", Align::Right)]);
    table.row(["resnet50", "1"]);
    table.row(["vgg", "1000"]);
    assert_eq!(table.to_string(), "name         n\nresnet50     1\nvgg       1000\n");
}

#[test]
fn no_cell_breaks_its_line_or_steers_a_terminal() {
    let mut table = Table::new([("a\u{1b}[2J", Align::Left)]);
    table.row(["x\ny"]);
    assert_eq!(table.to_string(), "a [2J\nx y\n");
}

#[test]
fn a_short_row_runs_on_and_widens_nothing() {
    let mut table = Table::new([("a", Align::Left), ("b", Align::Right), ("c", Align::Right)]);
    table.row(["x", "1", "2"]);
    table.row(["y", "a reason that is long"]);
    assert_eq!(table.to_string(), "a  b  c\nx  1  2\ny  a reason that is long\n");
}

#[test]
fn a_column_without_values_is_left_out() {
    let mut table = Table::new([("a", Align::Left), ("b", Align::Right), ("c", Align::Right)]);
    table.row(["x", "-", "1"]);
    table.row(["y", "", "-"]);
    table.row(["z", "failed"]);
    assert_eq!(table.to_string(), "a  c\nx  1\ny  -\nz  failed\n");
    let empty = Table::new([("a", Align::Left), ("b", Align::Right)]);
    assert_eq!(empty.to_string(), "a  b\n", "without rows nothing is known of columns");
}

/// Two numbers, one with an interval, of a long name.
fn wide() -> Table {
    let mut table = Table::new([
        Column::words("case"),
        Column::numbers("images/s").keep(3.0),
        Column::interval().keep(2.0),
        Column::numbers("seconds of everything else").short("seconds").keep(1.0),
    ]);
    table.row(["resnet50, compress bf16, overlap no", "1000.5", "999.1 .. 1002.3", "7"]);
    table.row([
        "resnet50, compress bf16, overlap yes",
        "failed: a reason that is longer than any of these lines",
    ]);
    table
}

#[test]
fn the_least_columns_go_first_and_are_named() {
    let fitted = wide().fit(50);
    assert_eq!(
        fitted.lines,
        [
            "case                  images/s    95 % interval",
            "resnet50,..verlap no    1000.5  999.1 .. 1002.3",
            "resnet50,..erlap yes  failed: a reason that is l.."
        ]
        .map(str::to_owned)
    );
    let names =
        |width| wide().fit(width).left_out.iter().map(|column| column.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(50), ["seconds of everything else"]);
    assert_eq!(names(40), ["95 % interval", "seconds of everything else"]);
    assert!(wide().fit(1000).left_out.is_empty());
}

#[test]
fn no_line_is_wider_than_there_is_room() {
    for width in 20..120 {
        let fitted = wide().fit(width);
        assert!(fitted.lines.iter().all(|line| display_width(line) <= width), "{width}: {:?}", fitted.lines);
    }
}

#[test]
fn an_interval_goes_with_its_value() {
    let mut table = Table::new([
        Column::words("case"),
        Column::numbers("speed-up").keep(1.0),
        Column::interval().keep(2.0),
        Column::numbers("workers").always(),
    ]);
    table.row(["resnet50", "1.92", "1.88 .. 1.95", "2"]);
    assert_eq!(table.fit(20).lines, ["case      workers", "resnet50        2"].map(str::to_owned));
}

#[test]
fn long_words_at_the_end_are_broken_before_numbers_are_left_out() {
    let mut table = Table::new([
        Column::words("case"),
        Column::numbers("median ms").keep(2.0),
        Column::words("steady state").keep(1.0).wrapping(),
    ]);
    table.row(["resnet50", "12.5", "not steady: steps vary by 71 %; counted from step 4"]);
    table.row(["vgg16", "30.0", "steady"]);
    let fitted = table.fit(48);
    assert_eq!(
        fitted.lines,
        [
            "case      median ms  steady state",
            "resnet50       12.5  not steady: steps vary by",
            "                     71 %; counted from step 4",
            "vgg16          30.0  steady",
        ]
        .map(str::to_owned)
    );
    assert!(fitted.left_out.is_empty());
    assert_eq!(table.fit(200).lines.len(), 3, "where there is room, a cell is one line");
}
