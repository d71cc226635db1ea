//! temporary
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Verdict {
    #[serde(rename = "flat")]
    Flat,
    #[serde(rename = "warm-up")]
    WarmUp,
    #[serde(rename = "slowdown")]
    Slowdown,
    #[serde(rename = "no steady state")]
    NoSteadyState,
    #[serde(rename = "too short")]
    TooShort,
}
impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::WarmUp => "warm-up",
            Self::Slowdown => "slowdown",
            Self::NoSteadyState => "no steady state",
            Self::TooShort => "too short",
        }
    }
}
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyState {
    pub from: usize,
    pub verdict: Verdict,
    pub changes: Vec<usize>,
    pub outliers: Vec<usize>,
    pub mser: Option<usize>,
    pub disagrees: bool,
}
/// temporary
pub fn find(times: &[f64]) -> SteadyState {
    let n = times.len();
    SteadyState {
        from: 2.min(n.saturating_sub(1)),
        verdict: if n < 20 { Verdict::TooShort } else { Verdict::WarmUp },
        changes: vec![],
        outliers: vec![],
        mser: None,
        disagrees: false,
    }
}
