//! Tests weights on pictures that were not trained on.

use std::path::Path;

use paceline_engine::{Layout, Numerics, Precision, Spec, Values};
use paceline_model::{Graph, ParamId};

use crate::checkpoint::{self, Description, Tensor};
use crate::data::{Data, Scale, TestSet};
use crate::{TrainError, numerics, open_engine};

/// What to evaluate, and how.
pub struct Question<'a> {
    /// Where the weights came from, for error messages.
    pub path: &'a Path,
    /// The weights.
    pub weights: Vec<Tensor>,
    /// Their network.
    pub network: &'a Description,
    /// The pictures.
    pub data: &'a Data,
    /// Seed of synthetic pictures.
    pub seed: u64,
    /// What computes.
    pub engine: &'a str,
    /// Its threads.
    pub threads: usize,
    /// Order of dimensions.
    pub layout: Layout,
    /// How values are stored and multiplied.
    pub precision: Precision,
    /// The training's, which are kept to where this machine can.
    pub numerics: Option<Numerics>,
    /// Pictures at a time.
    pub batch: usize,
    /// Number of pictures to keep, with what an autoencoder made of them.
    pub keep: usize,
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Instruction set that computed; `None` where the engine has none.
    pub instructions: Option<String>,
    /// Pictures tested.
    pub examples: u64,
    /// Mean loss.
    pub loss: f64,
    /// Correct predictions; `None` for an autoencoder.
    pub correct: Option<u64>,
    /// For an autoencoder: how close its pictures are to the originals.
    pub likeness: Option<Likeness>,
}

/// How close pictures are to their originals.
#[derive(Clone, Debug, PartialEq)]
pub struct Likeness {
    /// Peak signal-to-noise ratio in dB, brightness from 0 to 1: the mean over the pictures.
    pub psnr: f64,
    /// Originals and their reconstructions.
    pub pairs: Vec<[Picture; 2]>,
}

/// A picture with 8 bits per channel, in red, green and blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Height and width.
    pub size: (usize, usize),
    /// Row by row.
    pub pixels: Vec<u8>,
}

/// Runs the network over the test set; `progress` is told how much of it is done.
pub fn evaluate(question: Question<'_>, progress: &mut dyn FnMut(f64)) -> Result<Answer, TrainError> {
    let Question { path, weights, network, data, batch, .. } = question;
    let Description { model, input, classes } = network;
    let graph = paceline_model::zoo::build(model, Some(*input), *classes)?;
    let (expected, got) = (graph.input().c, data.shape().c);
    if expected != got {
        return Err(TrainError::Channels { model: model.clone(), expected, got });
    }
    data.check()?;
    let mut test = TestSet::open(data, *input, *classes, question.seed, batch)?;
    let numerics = question.numerics.filter(numerics::is_available);
    let engine = open_engine(question.engine, question.threads, numerics.as_ref())?;
    let spec = Spec { layout: question.layout, precision: question.precision, ..Spec::new(batch) };
    let mut program = engine.compile(&graph, &spec)?;
    for (id, values) in checkpoint::arrange(weights, &graph, path)?.iter().enumerate() {
        program.write(Values::Param(ParamId(id)), values)?;
    }
    let (mut loss, mut correct) = (0.0, 0);
    let mut judge = (!graph.judges_labels()).then(|| Judge::new(&graph, data.scale(), question.keep));
    let mut output = vec![0.0; graph.node(graph.output()).shape.len() * batch];
    for first in (0..test.len()).step_by(batch) {
        let (samples, live) = test.batch(first)?;
        program.feed(samples)?;
        program.evaluate(live)?;
        let result = program.finish()?;
        loss += f64::from(result.loss) * live as f64;
        correct += result.correct as u64;
        if let Some(judge) = &mut judge {
            program.read(Values::Output, &mut output)?;
            judge.compare(samples.images, &output, live);
        }
        progress((first + live) as f64 / test.len() as f64);
    }
    let count = test.len().max(1) as f64;
    Ok(Answer {
        instructions: program.numerics().instruction_set,
        examples: test.len() as u64,
        loss: loss / count,
        correct: graph.judges_labels().then_some(correct),
        likeness: judge.map(|judge| Likeness { psnr: judge.total / count, pairs: judge.pairs }),
    })
}

/// Compares pictures with their originals.
struct Judge {
    size: (usize, usize),
    len: usize,
    scale: Scale,
    keep: usize,
    total: f64,
    pairs: Vec<[Picture; 2]>,
}

/// The ratio for a picture that equals its original: 8 bits cannot show a better one.
const PERFECT: f64 = 100.0;

impl Judge {
    fn new(graph: &Graph, scale: Scale, keep: usize) -> Self {
        let shape = graph.input();
        Self { size: (shape.h, shape.w), len: shape.len(), scale, keep, total: 0.0, pairs: Vec::new() }
    }

    fn compare(&mut self, originals: &[f32], made: &[f32], live: usize) {
        let pairs = originals.chunks_exact(self.len).zip(made.chunks_exact(self.len));
        for (original, made) in pairs.take(live) {
            let brightness = |values: &[f32]| -> Vec<f32> {
                values.iter().enumerate().map(|(i, &value)| self.scale.brightness(i % 3, value)).collect()
            };
            let (original, made) = (brightness(original), brightness(made));
            let squares = original.iter().zip(&made).map(|(a, b)| f64::from(a - b).powi(2));
            let error = squares.sum::<f64>() / self.len as f64;
            self.total += (-10.0 * error.log10()).min(PERFECT);
            if self.pairs.len() < self.keep {
                let picture = |values: &[f32]| Picture {
                    size: self.size,
                    pixels: values.iter().map(|value| (255.0 * value).round() as u8).collect(),
                };
                self.pairs.push([picture(&original), picture(&made)]);
            }
        }
    }
}

/// Originals in the upper of each two rows, their reconstructions below.
pub fn sheet(pairs: &[[Picture; 2]], columns: usize) -> Picture {
    const GAP: usize = 4;
    let (h, w) = pairs.first().map_or((0, 0), |pair| pair[0].size);
    let columns = columns.clamp(1, pairs.len().max(1));
    let rows = pairs.len().div_ceil(columns);
    let width = columns * (w + GAP) + GAP;
    let height = rows * (2 * h + GAP + 2) + GAP;
    let mut pixels = vec![255; height * width * 3];
    for (number, pair) in pairs.iter().enumerate() {
        let left = GAP + number % columns * (w + GAP);
        let top = GAP + number / columns * (2 * h + GAP + 2);
        for (picture, top) in pair.iter().zip([top, top + h + 2]) {
            for (y, row) in picture.pixels.chunks_exact(3 * w).enumerate() {
                let at = ((top + y) * width + left) * 3;
                pixels[at..at + 3 * w].copy_from_slice(row);
            }
        }
    }
    Picture { size: (height, width), pixels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_error_gives_its_ratio_and_none_gives_the_most() {
        let graph = paceline_model::zoo::build("image_compression", Some((32, 32)), 10).expect("it fits");
        let plain = Scale { mean: [0.0; 3], deviation: [1.0; 3] };
        let mut judge = Judge::new(&graph, plain, 1);
        let len = graph.input().len();
        let (original, off) = (vec![0.5; 2 * len], vec![0.6; 2 * len]);
        judge.compare(&original, &off, 2);
        // An error of 0.1 everywhere is 20 dB.
        assert!((judge.total / 2.0 - 20.0).abs() < 1e-5, "{}", judge.total);
        assert_eq!(judge.pairs.len(), 1, "no more than asked for");
        judge.compare(&original, &original, 1);
        assert!((judge.total - 40.0 - PERFECT).abs() < 1e-4);
    }

    #[test]
    fn a_sheet_has_originals_above_what_became_of_them() {
        let picture = |value: u8| Picture { size: (2, 3), pixels: vec![value; 18] };
        let sheet = sheet(&[[picture(1), picture(2)], [picture(3), picture(4)], [picture(5), picture(6)]], 2);
        assert_eq!(sheet.size, (2 * (2 * 2 + 6) + 4, 2 * 7 + 4));
        let at = |y: usize, x: usize| sheet.pixels[(y * sheet.size.1 + x) * 3];
        assert_eq!((at(4, 4), at(8, 4), at(4, 11), at(8, 11), at(14, 4), at(18, 4)), (1, 2, 3, 4, 5, 6));
        assert_eq!(at(0, 0), 255);
    }
}
