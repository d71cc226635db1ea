//! Facts from the text around tables: steps, batch, epochs, data set, parameters.

use serde::Serialize;

use super::figure;
use super::page::{Block, Content, Grid};

/// What a fact is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// Steps of a run.
    Steps,
    /// Examples of a step of one worker.
    Batch,
    /// Epochs of a run.
    Epochs,
    /// Batches that make up a task.
    Batches,
    /// Examples of a task.
    Images,
    /// Parameters called trainable.
    Trainable,
    /// Tensors called trainable.
    Tensors,
}

impl Topic {
    /// The name in sentences.
    pub fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Batch => "batch",
            Self::Epochs => "epochs",
            Self::Batches => "batches per task",
            Self::Images => "images per task",
            Self::Trainable => "trainable parameters",
            Self::Tensors => "trainable tensors",
        }
    }
}

/// A number that the text gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fact {
    /// What it is about.
    pub topic: Topic,
    /// The number.
    pub value: u64,
    /// Where its paragraph begins.
    pub line: usize,
    /// Whether it is a `key: value` entry rather than part of a sentence.
    #[serde(skip)]
    pub listed: bool,
}

/// A well-known data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DataSet {
    /// Its name.
    pub name: &'static str,
    /// Examples to train with.
    pub train: u64,
    /// Examples kept for tests (or validation).
    pub test: u64,
    /// Classes.
    pub classes: u64,
}

const DATA_SETS: [DataSet; 4] = [
    DataSet { name: "CIFAR-100", train: 50_000, test: 10_000, classes: 100 },
    DataSet { name: "CIFAR-10", train: 50_000, test: 10_000, classes: 10 },
    DataSet { name: "MNIST", train: 60_000, test: 10_000, classes: 10 },
    DataSet { name: "ImageNet", train: 1_281_167, test: 50_000, classes: 1000 },
];

/// The first data set that a text names.
pub fn data_set(text: &str) -> Option<DataSet> {
    let words: Vec<String> = text.split_whitespace().map(squeeze).collect();
    let names = |set: &DataSet| words.iter().any(|word| word.contains(&squeeze(set.name)));
    DATA_SETS.into_iter().find(names)
}

/// Families of networks, and the names in the zoo where it has one. Longer names come first.
const MODELS: [(&str, &str); 18] = [
    ("resnetv2101", "resnet_v2_101"),
    ("resnet101v2", "resnet_v2_101"),
    ("resnet152", "resnet152"),
    ("resnet101", "resnet101"),
    ("resnet50", "resnet50"),
    ("resnet34", "resnet34"),
    ("resnet18", "resnet18"),
    ("vgg19", "vgg_19"),
    ("vgg16", "vgg_16"),
    ("inceptionv4", "inception_v4"),
    ("inception4", "inception_v4"),
    ("inceptionv3", "inception_v3"),
    ("inception3", "inception_v3"),
    ("mobilenetv2", "mobilenet_v2"),
    ("mobilenet", "mobilenet"),
    ("alexnet", "alexnet"),
    ("imagecompression", "image_compression"),
    ("bert", "bert"),
];

/// The network that a text names first.
pub fn model(text: &str) -> Option<&'static str> {
    let text = squeeze(text);
    let found =
        MODELS.iter().enumerate().filter_map(|(rank, (key, name))| Some((text.find(key)?, rank, *name)));
    found.min().map(|(_, _, name)| name)
}

fn squeeze(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The facts of a paragraph.
pub fn facts(block: &Block) -> Vec<Fact> {
    match &block.content {
        Content::Paragraph(text) => paragraph(text, block.line),
        Content::Table(grid) => pairs(grid, block.line),
    }
}

#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Number(u64),
    /// What separates a key from its value.
    Is,
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for piece in text.split_whitespace() {
        let piece = piece
            .trim_matches(|c: char| matches!(c, '`' | '*' | '"' | '(' | ')' | ',' | '.' | ';'))
            .to_lowercase();
        if matches!(piece.as_str(), "-" | "=" | ":" | "–" | "->") {
            tokens.push(Token::Is);
            continue;
        }
        match figure::number(piece.trim_end_matches(':')) {
            Some((figure, rest))
                if rest.is_empty()
                    && figure.value >= 0.0
                    && figure.value.fract() == 0.0
                    && figure.value < 1e15 =>
            {
                tokens.push(Token::Number(figure.value as u64));
            }
            _ => {
                let is = piece.ends_with([':', '=']);
                let word = piece.trim_matches(|c: char| matches!(c, '`' | '*' | ':' | '='));
                tokens.push(Token::Word(word.replace('-', "_")));
                tokens.extend(is.then_some(Token::Is));
            }
        }
    }
    tokens
}

/// How many words before a number are searched for context.
const NEAR: usize = 24;

/// Longest paragraph that is read, in bytes.
const LONGEST: usize = 1 << 16;

/// Words that may stand between a key and its value.
const LINKS: [&str; 14] =
    ["set", "to", "is", "was", "of", "size", "parameter", "equal", "equals", "the", "a", "at", "per", "are"];

fn paragraph(text: &str, line: usize) -> Vec<Fact> {
    if text.len() > LONGEST {
        return Vec::new();
    }
    let tokens = tokens(text);
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => word.as_str(),
        _ => "",
    };
    let mut facts = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Number(value) = *token else { continue };
        // Backwards over the words that link a value to its key.
        let mut key = at;
        let mut listed = false;
        while key > 0 && (tokens[key - 1] == Token::Is || LINKS.contains(&word(key - 1))) {
            key -= 1;
            listed |= tokens[key] == Token::Is;
        }
        let before = if key > 0 { word(key - 1) } else { "" };
        // `16 GPU -> batch = 512` and `if the batch is 512` are examples, not settings.
        let from = key.saturating_sub(NEAR);
        let example = tokens[from..key].iter().any(|token| matches!(token, Token::Number(_)))
            && (from..key).any(|at| matches!(word(at).trim_end_matches('s'), "gpu" | "worker"))
            || (from..key).any(|at| word(at) == "if");
        let topic = match (before, word(at + 1)) {
            ("steps" | "max_step" | "max_steps" | "iterations", _) => Some(Topic::Steps),
            (_, "steps" | "iterations") => Some(Topic::Steps),
            ("epochs", _) => Some(Topic::Epochs),
            (_, "epochs") => Some(Topic::Epochs),
            ("batchsize" | "batch_size" | "batch" | "batches", _) => (!example).then_some(Topic::Batch),
            (_, "batches") => Some(Topic::Batches),
            (_, "images") => Some(Topic::Images),
            ("tensors", _) => Some(Topic::Tensors),
            _ => (key < at && tells_parameters(&tokens[..key])).then_some(Topic::Trainable),
        };
        if let Some(topic) = topic.filter(|_| value > 0) {
            facts.push(Fact { topic, value, line, listed });
        }
    }
    // Many texts mention images; only those next to batches belong to a task.
    let batches = facts.iter().any(|fact| fact.topic == Topic::Batches);
    facts.retain(|fact| fact.topic != Topic::Images || batches);
    facts
}

/// Whether the last words are `trainable parameters`, possibly followed by a phrase such as `in X for Y`.
fn tells_parameters(tokens: &[Token]) -> bool {
    let last = &tokens[tokens.len().saturating_sub(7)..];
    let wanted = [Token::Word("trainable".into()), Token::Word("parameters".into())];
    last.windows(2).any(|pair| pair == wanted)
}

/// Facts of a table of names and values.
fn pairs(grid: &Grid, line: usize) -> Vec<Fact> {
    if grid.header.len() != 2 {
        return Vec::new();
    }
    let rows = std::iter::once(&grid.header).chain(&grid.rows);
    let fact = |row: &Vec<String>| {
        let name = row[0].to_lowercase();
        let (figure, _) = figure::number(row[1].trim()).filter(|(_, rest)| rest.is_empty())?;
        let whole = figure.value >= 1.0 && figure.value.fract() == 0.0 && figure.value < 1e15;
        let topic = match name.as_str() {
            _ if name.contains("batches") => Topic::Batches,
            _ if name.contains("batch") => Topic::Batch,
            _ if name.contains("epochs") => Topic::Epochs,
            _ if name.contains("steps") => Topic::Steps,
            _ if name.contains("images") || name.contains("examples") => Topic::Images,
            _ => return None,
        };
        whole.then_some(Fact { topic, value: figure.value as u64, line, listed: true })
    };
    rows.filter_map(fact).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(Topic, u64)> {
        paragraph(text, 1).into_iter().map(|fact| (fact.topic, fact.value)).collect()
    }

    #[test]
    fn settings_are_read_from_sentences_and_lists() {
        use Topic::*;
        assert_eq!(found("The maximum number of steps was set to 300 here."), [(Steps, 300)]);
        assert_eq!(found("with `max_steps` = 1,000"), [(Steps, 1000)]);
        assert_eq!(found("We ran 200 steps"), [(Steps, 200)]);
        assert_eq!(found("`Batchsize` - 16 per GPU."), [(Batch, 16)]);
        assert_eq!(found("batch size of 128"), [(Batch, 128)]);
        assert_eq!(found("`Epochs` - 7"), [(Epochs, 7)]);
        assert_eq!(
            found("A task is 40 batches of 32, that is 1290 images."),
            [(Batches, 40), (Batch, 32), (Images, 1290)]
        );
        assert_eq!(
            found("The number of trainable parameters in LeNet for cifar10 is 61,706."),
            [(Trainable, 61_706)]
        );
        assert_eq!(
            found("The number of trainable parameters is 7,000 and the number of trainable\ntensors is 9."),
            [(Trainable, 7000), (Tensors, 9)]
        );
    }

    #[test]
    fn examples_of_settings_are_not_settings() {
        assert_eq!(found("16 GPU -> Batchsize = 256"), []);
        assert_eq!(found("if batch size is 256 and there are 16 workers"), []);
        assert_eq!(found("In 2018 we had 8 machines."), []);
    }

    #[test]
    fn networks_and_data_sets_go_by_many_names() {
        for (text, name) in [
            ("ResNet-50", "resnet50"),
            ("the `resnet_v2_101` model", "resnet_v2_101"),
            ("An Image Compression Model", "image_compression"),
            ("MobileNetV2, unlike ResNet50", "mobilenet_v2"),
        ] {
            assert_eq!(model(text), Some(name));
        }
        assert_eq!(model("a network"), None);
        assert_eq!(data_set("cifar10").map(|set| set.name), Some("CIFAR-10"));
        assert_eq!(data_set("CIFAR-100").map(|set| set.name), Some("CIFAR-100"));
    }
}
