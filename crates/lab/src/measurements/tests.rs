use std::fmt::Write;

use proptest::prelude::*;

use super::*;

const PLACEMENTS: &str = "placement,local_bsz,step_time,sync_time\n";
const COUNTS: &str = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n";

fn read(bytes: &[u8]) -> Result<Measurements, String> {
    let mut measurements = Measurements::default();
    let result = measurements.read("a.csv", bytes, &mut |_| {});
    result.map(|()| measurements).map_err(|error| error.to_string())
}

fn seen(nodes: u32, replicas: u32, local_batch: u32, compute_s: f64, step_s: f64) -> Observation {
    Observation { shape: Shape::new(nodes, replicas).unwrap(), local_batch, compute_s, step_s }
}

/// The message for a row below the header of placements.
fn refused_row(row: &str) -> String {
    let message = read(format!("{PLACEMENTS}{row}\n").as_bytes()).unwrap_err();
    message.strip_prefix("a.csv:2: ").expect("the message names file and line").to_owned()
}

#[test]
fn both_forms_tell_the_same_shape() {
    for text in [
        format!("{PLACEMENTS}112,8,0.5,0.25\n"),
        format!("{COUNTS}3,4,8,0.5,0.25\n"),
        "sync_time,extra,step_time,local_bsz,num_replicas,num_nodes\n0.25,\"x,y\",0.5,8,4,3\n".to_owned(),
        "\u{feff}\"placement\", local_bsz,step_time,sync_time\r\n\r\n\"112\",8, 5e-1 ,.25\r\n".to_owned(),
    ] {
        let measurements = read(text.as_bytes()).unwrap();
        assert_eq!(measurements.configurations(), [seen(3, 4, 8, 0.25, 0.5)], "{text}");
        assert_eq!(measurements.replicas_per_node_max(), 2, "{text}");
    }
}

#[test]
fn rows_of_a_cell_are_averaged_and_each_placement_counts_once() {
    let rows = "13,8,1,0\n13,8,3,0\n13,8,2,0\n22,8,4,1\n1,4,1,0\n";
    let measurements = read(format!("{PLACEMENTS}{rows}").as_bytes()).unwrap();
    assert_eq!(measurements.configurations(), [seen(1, 1, 4, 1.0, 1.0), seen(2, 4, 8, 2.5, 3.0)]);
    let cells: Vec<_> = measurements.cells().collect();
    assert_eq!(cells, [seen(1, 1, 4, 1.0, 1.0), seen(2, 4, 8, 2.0, 2.0), seen(2, 4, 8, 3.0, 4.0)]);
    assert_eq!(measurements.rows(), 5);
    assert_eq!((measurements.local_batch_min(), measurements.local_batch_max()), (4, 8));
    assert_eq!((measurements.replicas_max(), measurements.replicas_per_node_max()), (4, 3));
    assert_eq!((measurements.one_node_replicas_max(), measurements.multi_node_replicas_max()), (1, 4));
}

#[test]
fn bytes_that_are_not_text_are_only_refused_where_they_are_read() {
    assert!(read(b"placement,local_bsz,step_time,sync_time,n\xffte\n1,8,1,0,\xff\n").is_ok());
    assert_eq!(
        read(b"placement,local_bsz,step_time,sync_time\n1,\xff8,1,0\n").unwrap_err(),
        "a.csv:2: column local_bsz is \"\u{fffd}8\"; expected whole numbers from 1 to 16777216"
    );
}

#[test]
fn files_without_rows_are_refused() {
    assert_eq!(read(b"").unwrap_err(), "a.csv: is empty; expected a header followed by rows");
    assert_eq!(read(b"\xef\xbb\xbf\r\n\r\n").unwrap_err(), "a.csv: is empty; expected a header followed by rows");
    let message = "a.csv: has no rows below its header; expected one row or more";
    assert_eq!(read(PLACEMENTS.as_bytes()).unwrap_err(), message);
}

#[test]
fn headers_are_refused_with_what_is_missing() {
    let accepted = "expected the columns placement (or num_nodes and num_replicas), local_bsz, step_time, sync_time";
    let check = |header: &str, problem: &str| {
        assert_eq!(read(format!("{header}\n").as_bytes()).unwrap_err(), format!("a.csv:1: {problem}"));
    };
    check("1,8,0.5,0.1", &format!("header \"1,8,0.5,0.1\" is unknown; {accepted}"));
    check("placement;local_bsz", &format!("header \"placement;local_bsz\" is unknown; {accepted}"));
    check("placement,step_time", &format!("header \"placement,step_time\" has no column local_bsz; {accepted}"));
    check("num_nodes,local_bsz", &format!("header \"num_nodes,local_bsz\" has no column num_replicas; {accepted}"));
    check("placement,placement", "header has the column placement more than once; expected once");
    check(&"x".repeat(200), &format!("header \"{}\"... is unknown; {accepted}", "x".repeat(80)));
}

#[test]
fn times_outside_of_what_a_step_can_take_are_refused() {
    let refused = "expected seconds from 1e-7 to 1e7";
    for value in ["", "abc", "NaN", "inf", "-inf", "-1", "0", "1e-8", "1e8", "0.5s", "1e999"] {
        assert_eq!(refused_row(&format!("1,8,{value},0")), format!("column step_time is {value:?}; {refused}"));
    }
    for value in ["", "x", "NaN", "inf", "-0.1", "0.5", "0.6"] {
        let problem = format!("column sync_time is {value:?} where step_time is 0.5");
        assert_eq!(
            refused_row(&format!("1,8,0.5,{value}")),
            format!("{problem}; expected seconds from 0 to below step_time")
        );
    }
}

#[test]
fn placements_and_batches_that_cannot_be_are_refused() {
    let digits = "expected the replicas on each node as digits 1 to 9, like 1, 22 or 444";
    for value in ["", "0", "10", "a", "1.5", "-1", "2x2"] {
        assert_eq!(refused_row(&format!("{value},8,1,0")), format!("column placement is {value:?}; {digits}"));
    }
    let long = format!("{}...", "1".repeat(80).escape_debug());
    assert!(refused_row(&format!("{},8,1,0", "1".repeat(300))).contains(&long.replace("...", "\"...")));
    let whole = "expected whole numbers from 1 to 16777216";
    for value in ["", "0", "-4", "4.5", "4.", ".0", "0.0", "4.0.0", "1e3", "16777217", "99999999999999999999", "four"] {
        assert_eq!(refused_row(&format!("1,{value},1,0")), format!("column local_bsz is {value:?}; {whole}"));
    }
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let refused = |row: &str| read(format!("{COUNTS}{row}\n").as_bytes()).unwrap_err();
    let whole = "expected whole numbers from 1 to 65536";
    assert_eq!(refused("0,4,8,1,0"), format!("a.csv:2: column num_nodes is \"0\"; {whole}"));
    assert_eq!(refused("1,65537,8,1,0"), format!("a.csv:2: column num_replicas is \"65537\"; {whole}"));
    assert_eq!(
        refused("5,4,8,1,0"),
        "a.csv:2: column num_nodes is \"5\" where num_replicas is 4; expected 1 to 4 nodes"
    );
}

#[test]
fn whole_numbers_may_have_a_fraction_of_zero() {
    let measurements = read(format!("{COUNTS}3.0,4.00,8.0,0.5,0.25\n").as_bytes()).unwrap();
    assert_eq!(measurements.configurations(), [seen(3, 4, 8, 0.25, 0.5)]);
}

#[test]
fn a_placement_must_agree_with_the_counts_beside_it() {
    let read_row = |row: &str| {
        let header = "num_nodes,placement,num_replicas,local_bsz,step_time,sync_time";
        read(format!("{header}\n{row}\n").as_bytes()).map(|measurements| measurements.configurations())
    };
    for row in ["2,13,4,8,0.5,0.25", "2.0,13,4.0,8,0.5,0.25", ",13,,8,0.5,0.25", ",13,9,8,0.5,0.25"] {
        assert_eq!(read_row(row), Ok(vec![seen(2, 4, 8, 0.25, 0.5)]), "{row}");
    }
    for (row, nodes, replicas) in [("1,13,4,8,0.5,0", 1, 4), ("2,13,5,8,0.5,0", 2, 5)] {
        assert_eq!(
            read_row(row).unwrap_err(),
            format!(
                "a.csv:2: column placement is \"13\" where num_nodes is {nodes} and num_replicas is {replicas}; \
                 expected the placement of these counts"
            )
        );
    }
    // One count alone may be about something else, as other columns are.
    assert!(read(b"num_nodes,placement,local_bsz,step_time,sync_time\n9,13,8,0.5,0\n").is_ok());
}

#[test]
fn rows_of_another_width_are_refused() {
    assert_eq!(refused_row("1,8,0,5,0"), "the row has 5 fields; expected 4, as many as the header has");
    assert_eq!(refused_row("1,8,1"), "the row has 3 fields; expected 4, as many as the header has");
    assert_eq!(
        refused_row("\"1,8,1,0"),
        "a quoted field does not close on its line; expected one followed by a comma or the line's end"
    );
}

#[test]
fn times_that_contradict_each_other_are_refused_even_across_placements() {
    let text = format!("{PLACEMENTS}13,8,0.5,0\n22,8,4,0\n13,8,0.03,0\n");
    assert_eq!(
        read(text.as_bytes()).unwrap_err(),
        "a.csv:4: column step_time is \"0.03\" where the same configuration also took 4 s; expected times within a \
         factor of 100"
    );
}

#[test]
fn more_configurations_than_are_kept_are_refused() {
    let mut text = COUNTS.to_owned();
    for idx in 0..=CELLS_MAX {
        writeln!(text, "1,{},{},1,0", idx / 1000 + 1, idx % 1000 + 1).unwrap();
    }
    assert_eq!(
        read(text.as_bytes()).unwrap_err(),
        "a.csv:100002: the row is a new configuration after 100000 others; expected at most 100000 different ones"
    );
}

#[derive(Clone, Debug)]
struct GeneratedRow {
    placement: String,
    local_batch: u32,
    step_s: f64,
    sync_share: f64,
}

fn generated_row() -> impl Strategy<Value = GeneratedRow> {
    // Times stay within a factor of 100, so that no two rows contradict each other.
    ("[1-9]{1,6}", 1u32..50, 0.02f64..1.9, 0.0f64..0.9).prop_map(|(placement, local_batch, step_s, sync_share)| {
        GeneratedRow { placement, local_batch, step_s, sync_share }
    })
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_in_one_line(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Err(message) = read(&bytes) {
            prop_assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn any_text_below_a_header_is_read_or_refused_in_one_line(
        text in "([0-9.,\"\r\n eE+-]|NaN|inf|\\PC){0,80}",
        counts in any::<bool>(),
    ) {
        let header = if counts { COUNTS } else { PLACEMENTS };
        if let Err(message) = read(format!("{header}{text}").as_bytes()) {
            prop_assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn valid_rows_become_the_means_of_their_cells(rows in proptest::collection::vec(generated_row(), 1..60)) {
        let mut text = PLACEMENTS.to_owned();
        let mut expected = BTreeMap::<(Shape, u32, &str), Vec<(f64, f64)>>::new();
        for GeneratedRow { placement, local_batch, step_s, sync_share } in &rows {
            let sync_s = step_s * sync_share;
            writeln!(text, "{placement},{local_batch},{step_s},{sync_s}").unwrap();
            let replicas = placement.bytes().map(|digit| u32::from(digit - b'0')).sum();
            let shape = Shape::new(placement.len() as u32, replicas).unwrap();
            expected.entry((shape, *local_batch, placement)).or_default().push((*step_s, sync_s));
        }
        let measurements = read(text.as_bytes()).unwrap();
        prop_assert_eq!(measurements.rows(), rows.len() as u64);
        let cells: Vec<Observation> = measurements.cells().collect();
        prop_assert_eq!(cells.len(), expected.len());
        for (cell, ((shape, local_batch, _), times)) in cells.iter().zip(expected) {
            let count = times.len() as f64;
            let step_s = times.iter().map(|(step_s, _)| step_s).sum::<f64>() / count;
            let sync_s = times.iter().map(|(_, sync_s)| sync_s).sum::<f64>() / count;
            prop_assert_eq!((cell.shape, cell.local_batch), (shape, local_batch));
            prop_assert!((cell.step_s - step_s).abs() < 1e-12);
            prop_assert!((cell.compute_s - (step_s - sync_s)).abs() < 1e-12);
            prop_assert!(cell.check().is_ok());
        }
    }
}
