//! Names of kernels and operators, cut to what a table has room for.

/// Letters of a name that are shown.
const WIDTH: usize = 60;

/// Letters kept at the end of a shortened name: they distinguish templates.
const TAIL: usize = 17;

/// Letters at the begin of a name that is cut twice.
const HEAD: usize = 16;

/// Letters that are shown from where a name differs, at least.
const BEHIND: usize = 12;

/// Stands for omitted letters.
const CUT: &str = "...";

/// A name that fits, without control characters. A long one is shortened in the middle.
pub fn clean(name: &str) -> String {
    cut(&letters(name))
}

/// Names that fit, in their order. If shortening would make two alike, the part that distinguishes them is kept.
pub fn shorten<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names: Vec<Vec<char>> = names.map(letters).collect();
    let cuts: Vec<String> = names.iter().map(|name| cut(name)).collect();
    let shortened = |at: usize| {
        let twins = (0..names.len()).filter(|&other| cuts[other] == cuts[at] && names[other] != names[at]);
        let nearest = twins.map(|other| common(&names[at], &names[other])).max();
        nearest.map_or_else(|| cuts[at].clone(), |same| cut_around(&names[at], same))
    };
    (0..names.len()).map(shortened).collect()
}

fn letters(name: &str) -> Vec<char> {
    name.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn cut(name: &[char]) -> String {
    if name.len() <= WIDTH {
        return name.iter().collect();
    }
    let (head, tail) = (&name[..WIDTH - TAIL - CUT.len()], &name[name.len() - TAIL..]);
    [head.iter().collect(), CUT.into(), tail.iter().collect::<String>()].concat()
}

/// Letters that two names begin with alike.
fn common(one: &[char], other: &[char]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A long name as its begin and the piece that holds a place.
fn cut_around(name: &[char], place: usize) -> String {
    let room = WIDTH - HEAD - 2 * CUT.len();
    let place = place.min(name.len());
    // A piece begins with a whole word, if that leaves room for what comes at the place.
    let earliest = place.saturating_sub(room - BEHIND);
    let word = name[earliest..place].iter().rposition(|letter| " ,<(".contains(*letter));
    let begin = word.map_or(earliest, |at| earliest + at + 1);
    let begin = begin.clamp(HEAD, name.len().saturating_sub(room).max(HEAD));
    let end = (begin + room).min(name.len());
    let gap = if begin > HEAD { CUT } else { "" };
    let rest = if end < name.len() { CUT } else { "" };
    let piece = |letters: &[char]| letters.iter().collect::<String>();
    [piece(&name[..HEAD]), gap.into(), piece(&name[begin..end]), rest.into()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "void at::native::vectorized_elementwise_kernel<4, at::native::";
    const SUFFIX: &str = "<float>, at::detail::Array<char*, 3> >(int, at::detail::Array<char*, 3>)";

    #[test]
    fn a_long_name_is_cut_in_the_middle_and_a_short_one_stays() {
        assert_eq!(clean("gemm\u{1b}[31m"), "gemm [31m");
        let long = clean(&format!("{PREFIX}CUDAFunctor_add{SUFFIX}"));
        assert_eq!(long, "void at::native::vectorized_elementwise_...:Array<char*, 3>)");
    }

    #[test]
    fn names_that_differ_look_different() {
        let functors = ["CUDAFunctor_add", "BinaryFunctor", "AUnaryFunctor", "CUDAFunctor_mul"];
        let names: Vec<String> =
            functors.iter().map(|functor| format!("{PREFIX}{functor}{SUFFIX}")).collect();
        let shown = shorten(names.iter().map(String::as_str));
        for (name, functor) in shown.iter().zip(functors) {
            assert!(name.contains(functor) && name.chars().count() <= WIDTH, "{name}");
            assert_eq!(shown.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        assert_eq!(shown[0], "void at::native:...at::native::CUDAFunctor_add<float>, at...");
    }

    #[test]
    fn the_same_name_twice_and_a_difference_at_the_very_end_are_borne() {
        let long = "x".repeat(100);
        assert_eq!(shorten([long.as_str(), long.as_str()].into_iter()), [clean(&long), clean(&long)]);
        let (one, other) = (format!("{long}{}", "ä".repeat(40)), format!("{long}y{}", "ä".repeat(40)));
        let shown = shorten([one.as_str(), other.as_str()].into_iter());
        assert!(shown[0] != shown[1] && shown.iter().all(|name| name.chars().count() <= WIDTH), "{shown:?}");
    }
}
