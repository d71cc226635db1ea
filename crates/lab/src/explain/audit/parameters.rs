//! Compares parameter counts in the text with known networks.

use paceline_model::{summarize, zoo};

use super::{Check, Slip, Weight};
use crate::explain::figure::Figure;
use crate::explain::prose::{DataSet, Fact, Topic};

/// Counts of a network as a function of classes: a constant and a part per class.
struct Counts {
    trainable: [u64; 2],
    fixed: u64,
    tensors: u64,
}

fn counts(model: &str) -> Option<Counts> {
    let summary = |classes: usize| zoo::build(model, None, classes).ok().map(|graph| summarize(&graph));
    let (one, two) = (summary(1)?, summary(2)?);
    let each = two.params_trainable.checked_sub(one.params_trainable)?;
    Some(Counts {
        trainable: [one.params_trainable - each, each],
        fixed: one.params_total - one.params_trainable,
        tensors: one.tensors_trainable,
    })
}

impl Counts {
    /// The number of classes that gives this many trained values; zero if the network has none.
    fn classes(&self, trainable: u64) -> Option<u64> {
        let [constant, each] = self.trainable;
        let rest = trainable.checked_sub(constant)?;
        match each {
            0 => (rest == 0).then_some(0),
            _ => (rest > 0 && rest.is_multiple_of(each)).then(|| rest / each),
        }
    }
}

/// A sentence about parameters, with the network of its heading, and the network and data set that it names.
pub struct Claim<'a> {
    /// The count.
    pub fact: &'a Fact,
    /// The network of the heading.
    pub under: Option<&'static str>,
    /// The network of the sentence.
    pub named: Option<&'static str>,
    /// The data set of the sentence.
    pub data: Option<DataSet>,
}

/// Compares a count with the network's own.
pub fn check(claim: &Claim) -> Vec<Slip> {
    let Claim { fact, under, named, data } = claim;
    let Some((model, counts)) = under.or(*named).and_then(|model| Some((model, counts(model)?))) else {
        return Vec::new();
    };
    let place = format!("{} of {model} (line {})", fact.topic.name(), fact.line);
    let printed = Some(Figure::exact(fact.value as f64));
    let contradiction = |computed: u64, how: String| Slip {
        weight: Weight::Contradiction,
        printed,
        computed: Some(computed as f64),
        ..Slip::remark(Check::Parameters, place.clone(), how)
    };
    let mut slips = Vec::new();
    if fact.topic == Topic::Tensors {
        if fact.value != counts.tensors {
            slips.push(contradiction(counts.tensors, "tensors of the Keras version of the network".into()));
        }
        return slips;
    }
    let total = fact.value.checked_sub(counts.fixed);
    let classes = match (counts.classes(fact.value), total.and_then(|trainable| counts.classes(trainable))) {
        (Some(classes), _) => Some(classes),
        (None, Some(classes)) => {
            let trainable = fact.value - counts.fixed;
            let how = format!(
                "{} is the total, of which {} are running statistics and not trained{}",
                fact.value,
                counts.fixed,
                heads(classes)
            );
            slips.push(contradiction(trainable, how));
            Some(classes)
        }
        _ => None,
    };
    match (classes, data) {
        (Some(classes), Some(data)) if classes > 0 && classes != data.classes => slips.push(Slip {
            printed,
            ..Slip::remark(
                Check::Parameters,
                place.clone(),
                format!("the count is that of {classes} classes; {} has {}", data.name, data.classes),
            )
        }),
        (None, _) => slips.push(Slip {
            printed,
            ..Slip::remark(
                Check::Parameters,
                place.clone(),
                "no number of classes gives this count for the Keras version of the network",
            )
        }),
        _ => {}
    }
    if let Some(named) = named.filter(|named| under.is_some_and(|under| under != *named) && classes.is_some())
    {
        let how = format!("the sentence names {named}, the count is that of {model}");
        slips.push(Slip::remark(Check::Parameters, place.clone(), how));
    }
    slips
}

fn heads(classes: u64) -> String {
    if classes == 0 { String::new() } else { format!(" (with {classes} classes)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(model: &'static str, topic: Topic, value: u64) -> Vec<Slip> {
        let fact = Fact { topic, value, line: 1, listed: false };
        check(&Claim { fact: &fact, under: Some(model), named: None, data: None })
    }

    #[test]
    fn a_total_called_trainable_is_found() {
        // ResNet-50 with 10 classes trains 23,555,082 values; 53,120 more are running statistics.
        assert_eq!(checked("resnet50", Topic::Trainable, 23_555_082), []);
        let slips = checked("resnet50", Topic::Trainable, 23_608_202);
        assert_eq!(slips[0].weight, Weight::Contradiction);
        assert_eq!(slips[0].computed, Some(23_555_082.0));
        assert!(slips[0].how.contains("53120 are running statistics"), "{}", slips[0].how);
    }

    #[test]
    fn counts_that_no_head_gives_and_wrong_tensors_are_reported() {
        assert_eq!(checked("resnet50", Topic::Trainable, 23_555_083)[0].weight, Weight::Remark);
        assert_eq!(checked("mobilenet_v2", Topic::Tensors, 158), []);
        assert_eq!(checked("mobilenet_v2", Topic::Tensors, 159)[0].computed, Some(158.0));
        assert_eq!(checked("alexnet", Topic::Tensors, 159), [], "a network that is not known");
    }
}
