//! The seven networks of the field reports, one per file, and a small one for tests.

mod image_compression;
mod inception_v3;
mod inception_v4;
mod mobilenet_v2;
mod resnet50;
mod resnet_v2_101;
mod small_cnn;
mod vgg_19;

pub use small_cnn::small_cnn;

use crate::{Graph, Shape, ShapeError};

/// Channels of an image: red, green, blue.
const COLOURS: usize = 3;

/// Why a network cannot be built as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// No network has this name.
    #[error("unknown model {name:?}: {}; the models are {}", suggest(*.closest), NAMES.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The name that resembles it most, if one does.
        closest: Option<&'static str>,
    },
    /// A classifier needs a class.
    #[error("{model} with 0 classes cannot learn anything; use --classes 1 or more")]
    Classes {
        /// The network.
        model: String,
    },
    /// Some feature map inside the network would vanish.
    #[error("an input of {h}x{w} is too small for {model}; use --input {least}x{least} or larger")]
    TooSmall {
        /// The network.
        model: &'static str,
        /// Rows asked for.
        h: usize,
        /// Columns asked for.
        w: usize,
        /// The smallest possible side.
        least: usize,
    },
    /// The network halves its maps and must restore their size exactly.
    #[error("{model} needs sides that are multiples of {step}, not {h}x{w}; use --input {near_h}x{near_w}")]
    NotMultiple {
        /// The network.
        model: &'static str,
        /// Rows asked for.
        h: usize,
        /// Columns asked for.
        w: usize,
        /// What both sides must be multiples of.
        step: usize,
        /// The nearest valid number of rows.
        near_h: usize,
        /// The nearest valid number of columns.
        near_w: usize,
    },
    /// A layer cannot take its input.
    #[error(transparent)]
    Shape(#[from] ShapeError),
}

fn suggest(closest: Option<&str>) -> String {
    closest.map_or_else(|| "nothing is called like that".to_owned(), |name| format!("did you mean {name}?"))
}

/// Limits of a network that are known before building it.
struct Network {
    name: &'static str,
    /// Side of the input when none is given.
    side: usize,
    /// The shortest side that leaves every map at least 1x1.
    least: usize,
    /// Both sides are multiples of this.
    step: usize,
    build: fn(Shape, usize) -> Result<Graph, ShapeError>,
}

const NETWORKS: [Network; 7] = [
    Network { name: "resnet50", side: 224, least: 1, step: 1, build: resnet50::build },
    Network { name: "resnet_v2_101", side: 224, least: 1, step: 1, build: resnet_v2_101::build },
    Network { name: "vgg_19", side: 224, least: 32, step: 1, build: vgg_19::build },
    Network { name: "inception_v3", side: 299, least: 75, step: 1, build: inception_v3::build },
    Network { name: "inception_v4", side: 299, least: 75, step: 1, build: inception_v4::build },
    Network { name: "mobilenet_v2", side: 224, least: 1, step: 1, build: mobilenet_v2::build },
    Network { name: "image_compression", side: 256, least: 16, step: 16, build: image_compression::build },
];

/// The names that [`build`] knows.
pub const NAMES: [&str; 7] = {
    let mut names = [""; 7];
    let mut i = 0;
    while i < names.len() {
        names[i] = NETWORKS[i].name;
        i += 1;
    }
    names
};

/// Builds a network of the zoo for colour images of `input` (height, width), or of its default size.
///
/// ```
/// let graph = paceline_model::zoo::build("resnet50", Some((32, 32)), 10)?;
/// assert_eq!(paceline_model::summarize(&graph).params_trainable, 23_555_082);
/// # Ok::<(), paceline_model::ModelError>(())
/// ```
pub fn build(name: &str, input: Option<(usize, usize)>, classes: usize) -> Result<Graph, ModelError> {
    let network = find(name)?;
    let Network { name: model, least, step, .. } = *network;
    let (h, w) = input.unwrap_or((network.side, network.side));
    if classes == 0 {
        return Err(ModelError::Classes { model: model.to_owned() });
    }
    if h.min(w) < least {
        return Err(ModelError::TooSmall { model, h, w, least });
    }
    if let (Some(near_h), Some(near_w)) = (h.checked_next_multiple_of(step), w.checked_next_multiple_of(step))
        && (near_h, near_w) != (h, w)
    {
        return Err(ModelError::NotMultiple { model, h, w, step, near_h, near_w });
    }
    Ok((network.build)(Shape::new(h, w, COLOURS), classes)?)
}

/// Default height and width of a network.
pub fn default_input(name: &str) -> Result<(usize, usize), ModelError> {
    find(name).map(|network| (network.side, network.side))
}

fn find(name: &str) -> Result<&'static Network, ModelError> {
    const { &NETWORKS }.iter().find(|network| network.name == name).ok_or_else(|| {
        let closest = find_closest(name);
        ModelError::Unknown { name: name.to_owned(), closest }
    })
}

/// The name with the fewest edits, if they are fewer than half of its letters; case and punctuation do not count.
fn find_closest(name: &str) -> Option<&'static str> {
    let letters = |name: &str| -> Vec<char> {
        name.chars().filter(|c| c.is_alphanumeric()).take(40).flat_map(char::to_lowercase).collect()
    };
    let asked = letters(name);
    let scored = NAMES.into_iter().map(|known| {
        let known_letters = letters(known);
        (count_edits(&asked, &known_letters), known_letters.len(), known)
    });
    let near = scored.filter(|&(edits, len, _)| 2 * edits < len);
    near.min_by_key(|&(edits, ..)| edits).map(|(.., known)| known)
}

/// Levenshtein's distance.
fn count_edits(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_spelt_another_way_is_recognised() {
        for (asked, expected) in [
            ("resnet", Some("resnet50")),
            ("ResNet-50", Some("resnet50")),
            ("resnet101v2", Some("resnet_v2_101")),
            ("vgg19", Some("vgg_19")),
            ("VGG16", Some("vgg_19")),
            ("inceptionv4", Some("inception_v4")),
            ("mobilenet", Some("mobilenet_v2")),
            ("compression", Some("image_compression")),
            ("alexnet", None),
            ("", None),
        ] {
            assert_eq!(find_closest(asked), expected, "{asked}");
        }
    }

    #[test]
    fn edits_are_counted() {
        let count =
            |a: &str, b: &str| count_edits(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(count("kitten", "sitting"), 3);
        assert_eq!(count("", "abc"), 3);
    }
}
