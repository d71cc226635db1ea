#![allow(missing_docs)]
use paceline_lab::explain::{Options, audit::Weight, explain_text, render};
fn main() {
    let mut args = std::env::args().skip(1);
    let mode = args.next().unwrap();
    for file in args {
        let bytes = std::fs::read(&file).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let name = file.rsplit('/').next().unwrap();
        match explain_text(&text, &Options::default()) {
            Ok(found) if mode == "show" => println!("=== {name}\n{}", render(&found)),
            Ok(found) => {
                let slips: Vec<_> = found
                    .series
                    .iter()
                    .flat_map(|s| s.audit.slips.iter().map(move |x| (s, x)))
                    .filter(|(_, s)| s.weight == Weight::Contradiction)
                    .collect();
                let follows = found.series.iter().map(|s| s.audit.follows.len()).sum::<usize>();
                let doubts = found.series.iter().filter(|s| s.doubt.is_some()).count();
                println!(
                    "OK {} series {} follows {} doubts {} contradictions {name}",
                    found.series.len(),
                    follows,
                    doubts,
                    slips.len()
                );
                for (s, slip) in slips {
                    println!(
                        "    C line {:?} [{}] {}: printed {:?} computed {:?} ({})",
                        s.understood.lines,
                        s.understood.title,
                        slip.place,
                        slip.printed.map(|f| f.print()),
                        slip.computed,
                        slip.how
                    );
                }
                for s in &found.series {
                    if let Some(d) = &s.doubt {
                        println!("    D line {:?} [{}] {d}", s.understood.lines, s.understood.title);
                    }
                }
            }
            Err(error) => println!("NO {name}: {}", error.to_string().chars().take(300).collect::<String>()),
        }
    }
}
