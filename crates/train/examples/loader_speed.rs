//! How fast pictures are loaded, with nothing else to do:
//! `cargo run --release -p paceline-train --example loader_speed -- cifar10:DIR [batches [threads [input]]]`.
//!
//! Prints a JSON line: images/s, and the processor time of an image in microseconds.

use std::error::Error;
use std::time::Instant;

use paceline_train::data::{Augment, Data, Loader, Loading, Turn};

/// Samples of a batch.
const BATCH: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let data: Data = arguments.next().ok_or("say which data, as --data does")?.parse()?;
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |word| word.parse());
    let (batches, threads, side) = (number(100)?, number(1)?, number(data.shape().h)?);
    let mut loader = Loader::open(Loading {
        input: (side, side),
        classes: data.classes()?,
        data,
        seed: 1,
        batch: BATCH,
        passes: 1,
        all_shards: 1,
        augment: Augment::Standard,
        threads,
        log: None,
    })?;
    // Until the threads are at work and all that was made ahead is used up.
    let turn = |step: usize| Turn { step: step as u64, shard: 0, pass: 0 };
    let turns: Vec<Turn> = (0..2 * (threads + 2) + batches).map(turn).collect();
    for number in 0..threads + 2 {
        loader.batch(turns[number], &turns[number + 1..])?;
    }
    loader.cpu();
    let begin = Instant::now();
    for number in threads + 2..threads + 2 + batches {
        loader.batch(turns[number], &turns[number + 1..])?;
    }
    let (seconds, cpu) = (begin.elapsed().as_secs_f64(), loader.cpu().seconds());
    let images = (batches * BATCH) as f64;
    println!("{{\"images_per_s\": {:.1}, \"cpu_us\": {:.2}}}", images / seconds, cpu / images * 1e6);
    Ok(())
}
