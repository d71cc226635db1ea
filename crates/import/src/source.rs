//! From paths to runs: recognises files by content, and groups them into runs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use paceline_lab::StudyFolder;
use paceline_lab::origin::Format;
use paceline_record::Rank;

use super::named::{self, Whose};
use super::ranks::{self, Told};
use super::{
    ImportError, Imported, batch, chrome, events, horovod, kineto, metric_log, nvidia_smi, open, sqlite,
    tf_cnn, unknown, xplane,
};
use crate::trace::Trace;

/// Bytes at the start of a file that are used to recognise it.
const HEAD: usize = 64 << 10;

/// Depth of nested folders that are searched.
const DEEP: usize = 6;

/// Most files that a warning names.
const NAMED: usize = 3;

/// Most files of one import.
const MOST_FILES: usize = 10_000;

/// Recognises a format by the first bytes of a file.
type Recognise = fn(&[u8]) -> bool;

/// The format of a file; `None` if unknown.
pub fn recognise(path: &Path) -> Result<Option<Format>, ImportError> {
    let mut head = open::head(path, HEAD)?;
    // Other members may come before the events of a trace.
    if head.len() == HEAD && head.trim_ascii_start().starts_with(b"{") {
        head.extend(open::head_from(path, b"\"traceEvents\"", HEAD)?);
    }
    let readers: [(Recognise, Format); 9] = [
        // The reader reports a damaged or unrelated database.
        (sqlite::recognise, Format::Sqlite),
        (events::recognise, Format::Events),
        (kineto::recognise, Format::Kineto),
        (horovod::recognise, Format::Horovod),
        (metric_log::recognise, Format::MetricLog),
        (tf_cnn::recognise, Format::TfCnn),
        (nvidia_smi::recognise, Format::NvidiaSmi),
        (xplane::recognise, Format::XPlane),
        (chrome::recognise, Format::Chrome),
    ];
    Ok(readers.into_iter().find(|(recognise, _)| recognise(&head)).map(|(_, format)| format))
}

/// A file that was recognised.
struct Source {
    path: PathBuf,
    format: Format,
    /// The path given by the user; a folder holds the ranks of one run.
    named: PathBuf,
}

/// A run that was read, and the first of its files.
struct Found {
    name: String,
    run: Imported,
    path: PathBuf,
}

impl Found {
    fn new(name: String, format: Format, path: &Path, run: Imported) -> Self {
        Self { name, run: Imported { format: Some(format), ..run }, path: path.into() }
    }

    /// The folder that its first file lies in.
    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// The names of files that could not be used, by what they are.
#[derive(Default)]
struct LeftOut(BTreeMap<String, Vec<String>>);

impl LeftOut {
    /// The result of reading some files; if they lie in a folder, a failure becomes a warning.
    fn unless<T>(
        &mut self,
        files: &[&Source],
        read: Result<T, ImportError>,
    ) -> Result<Option<T>, ImportError> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) if files.iter().any(|source| source.named.as_os_str().is_empty()) => Err(error),
            Err(error) => {
                let why = match error {
                    ImportError::Io { source, .. } => source.to_string(),
                    ImportError::Bad { why, .. } => why,
                    error @ ImportError::Apart { .. } => error.to_string(),
                };
                files.iter().for_each(|source| self.note(&*why, &source.named, &source.path));
                Ok(None)
            }
        }
    }

    /// Notes a file by its name in the folder that the user named, or else by its own.
    fn note(&mut self, what: impl Into<String>, named: &Path, path: &Path) {
        let inside = path.strip_prefix(named).ok().filter(|_| !named.as_os_str().is_empty());
        let name = inside.map(Path::as_os_str).filter(|name| !name.is_empty()).or(path.file_name());
        let name = unknown::quote(&name.unwrap_or_default().to_string_lossy());
        self.0.entry(what.into()).or_default().push(name);
    }

    fn warnings(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(what, names)| format!("skipped {}: {what}", list(names)))
    }

    /// Why there is no run at all: what the files are, in one line.
    fn refuse(&self, paths: &[PathBuf]) -> ImportError {
        let kind = |(what, names): (&String, &Vec<String>)| format!("{} ({what})", list(names));
        let mut kinds: Vec<String> = self.0.iter().take(NAMED).map(kind).collect();
        let more: usize = self.0.values().skip(NAMED).map(Vec::len).sum();
        kinds.extend((more > 0).then(|| format!("and {more} of other kinds")));
        let why = if kinds.is_empty() {
            "no file is in it".into()
        } else {
            format!("no run is in it, but {}", kinds.join("; "))
        };
        ImportError::bad(paths.first().cloned().unwrap_or_default(), why)
    }
}

/// Logs of one worker do not say how many workers there were; the names of their folders may.
fn infer_workers(found: &mut [Found]) {
    let told = |one: &Found| {
        let logs = matches!(one.run.format, Some(Format::Events | Format::MetricLog));
        let names = [one.name.clone(), name_of(one.folder())];
        names.iter().filter(|_| logs && one.run.case.workers == 1).find_map(|name| named::workers(name))
    };
    let workers: Vec<Option<u32>> = found.iter().map(told).collect();
    let alone = workers.iter().position(|workers| *workers == Some(1));
    let one = alone.and_then(|place| named::rate(&found[place].run));
    for (found, workers) in found.iter_mut().zip(workers) {
        let Some(workers) = workers.filter(|&workers| workers > 1) else { continue };
        // Compared with a run of one worker, a rate of all is closer to N times that rate.
        let all = one
            .zip(named::rate(&found.run))
            .is_some_and(|(one, rate)| 2.0 * rate > one * f64::from(workers + 1));
        named::spread(&mut found.run, workers, if all { Whose::All } else { Whose::One });
    }
}

/// Gives a timeline that does not show its ranks their number by its name.
fn name_world(mut traces: Vec<Trace>, path: &Path) -> Vec<Trace> {
    let folder = path.parent().map(name_of);
    let mut names = [name_of(path)].into_iter().chain(folder);
    if let [trace @ Trace { world: None, .. }] = traces.as_mut_slice() {
        trace.world = names.find_map(|name| named::workers(&name));
        let note = |ranks: u32| format!("only the name says that there are {ranks} ranks");
        trace.warnings.extend(trace.world.map(note));
    }
    traces
}

/// One worker has no backend: copy that of the others, so that it is in the same group.
fn share_backend(found: &mut [Found]) {
    let told: BTreeSet<String> =
        found.iter().filter_map(|one| one.run.case.settings.get("backend").cloned()).collect();
    let Some(backend) = told.first().filter(|_| told.len() == 1) else { return };
    for case in found.iter_mut().map(|one| &mut one.run.case).filter(|case| case.workers == 1) {
        case.settings.entry("backend".into()).or_insert_with(|| backend.clone());
    }
}

/// Reads paths into named runs. Traces and event files of one folder are the ranks of one run, and so are
/// traces that are given individually; nvidia-smi samples are added to the runs in the same folder, or to all if
/// there are none.
pub fn import(paths: &[PathBuf], told: &Told) -> Result<Vec<(String, Imported)>, ImportError> {
    let mut left_out = LeftOut::default();
    let sources = gather(paths, &mut left_out)?;
    let mut found: Vec<Found> = Vec::new();
    for (name, files) in traces(&sources) {
        let mut traces: Vec<(&Source, Trace)> = Vec::new();
        for source in files {
            let read = left_out.unless(&[source], read_work(source))?.into_iter().flatten();
            traces.extend(read.map(|trace| (source, trace)));
        }
        for (name, traces) in set_apart(name, traces) {
            let Some(&(first, _)) = traces.first() else { continue };
            let mut files: Vec<&Source> = traces.iter().map(|(source, _)| *source).collect();
            files.dedup_by(|one, other| std::ptr::eq(*one, *other));
            let alone = files.len() == 1;
            let joined = ranks::join(traces.into_iter().map(|(_, trace)| trace).collect(), told);
            let joined = joined.map_err(|error| match error {
                ImportError::Apart { why } if alone => ImportError::bad(&first.path, why),
                error => error,
            });
            let run = left_out.unless(&files, joined)?;
            found.extend(run.map(|run| Found::new(name, first.format, &first.path, run)));
        }
    }
    for format in [Format::Events, Format::TfCnn] {
        for (name, files) in group_logs(&sources, format) {
            let first = files[0].0;
            let paths = files.iter().map(|(source, rank)| (source.path.as_path(), *rank)).collect::<Vec<_>>();
            let runs = match format {
                Format::Events => events::import(&paths).map(|run| vec![run]),
                _ => tf_cnn::import(&paths),
            };
            let files: Vec<&Source> = files.iter().map(|(source, _)| *source).collect();
            let runs = left_out.unless(&files, runs)?.into_iter().flatten();
            found.extend(runs.map(|run| Found::new(name.clone(), format, &first.path, run)));
        }
    }
    for source in &sources {
        let run = match source.format {
            Format::Horovod => {
                let traces = horovod::read(&source.path).map(|traces| name_world(traces, &source.path));
                traces.and_then(|traces| ranks::join(traces, told))
            }
            Format::MetricLog => metric_log::import(&source.path),
            Format::Chrome => {
                let see = "; use `paceline explain` to see it";
                let see = if source.named.as_os_str().is_empty() { see } else { "" };
                Err(ImportError::bad(&source.path, format!("{}{see}", chrome::NO_RUN)))
            }
            _ => continue,
        };
        let run = left_out.unless(&[source], run)?;
        found.extend(run.map(|run| Found::new(name_of(&source.path), source.format, &source.path, run)));
    }
    infer_workers(&mut found);
    share_backend(&mut found);
    for source in sources.iter().filter(|source| source.format == Format::NvidiaSmi) {
        let Some(monitor) = left_out.unless(&[source], nvidia_smi::read(&source.path))? else { continue };
        if found.is_empty() {
            left_out.note("only nvidia-smi samples", &source.named, &source.path);
        }
        let beside = |one: &Found| source.path.parent() == Some(one.folder());
        let any = found.iter().any(beside);
        found.iter_mut().filter(|one| !any || beside(one)).for_each(|one| monitor.attach(&mut one.run));
    }
    let Some(first) = found.first_mut() else { return Err(left_out.refuse(paths)) };
    first.run.warnings.splice(0..0, left_out.warnings());
    let is_empty = |run: &Imported| {
        run.progress.is_none() && (run.ranks.is_empty() || run.ranks.iter().any(|rank| rank.steps.is_empty()))
    };
    if let Some(Found { path, run, .. }) = found.iter().find(|one| is_empty(&one.run)) {
        let why = format!("it says nothing about speed: {}", run.warnings.join("; "));
        return Err(ImportError::bad(path, why));
    }
    // Runs that differ only in workers are adjacent, fewest workers first.
    let cases: Vec<_> = found.iter().map(|one| one.run.case.clone()).collect();
    let group = |one: &Found| cases.iter().position(|case| case.same_but_workers(&one.run.case));
    found.sort_by_cached_key(|one| (group(one), one.run.case.workers));
    let mut runs: Vec<(String, Imported)> = found.into_iter().map(|one| (one.name, one.run)).collect();
    tell_apart(&mut runs);
    for (_, run) in &mut runs {
        if run.case.model.is_empty() {
            run.case.model.clone_from(&told.model);
        }
        told.batch.into_iter().for_each(|told| batch::tell(run, told));
        run.warnings.extend(batch::note(run));
    }
    Ok(runs)
}

/// The traces of a file that profiles a device, or of a database; `None` for other files.
pub fn read_profile(path: &Path) -> Result<Option<Vec<Trace>>, ImportError> {
    let traces = match recognise(path)? {
        Some(Format::Sqlite) => sqlite::read(path)?,
        Some(Format::Kineto) => vec![kineto::read(path)?],
        Some(Format::XPlane) => xplane::read(path)?,
        _ => return Ok(None),
    };
    Ok(traces.iter().any(Trace::has_device).then_some(traces))
}

/// The ranks in a file that have work: one from PyTorch's profiler, one per process from a database, one per device
/// from JAX's or TensorFlow's.
fn read_work(source: &Source) -> Result<Vec<Trace>, ImportError> {
    let path = &source.path;
    let mut traces = match source.format {
        Format::Sqlite => sqlite::read(path)?,
        Format::XPlane => xplane::read(path)?,
        _ => vec![kineto::read(path)?],
    };
    let lasts = |trace: &Trace| trace.extent().is_some_and(|(begin, end)| begin < end);
    traces.retain(|trace| !trace.steps.is_empty() || lasts(trace));
    match traces.is_empty() {
        true => Err(ImportError::bad(path, "it is empty: no event has a duration")),
        false => Ok(traces),
    }
}

/// Traces with their files.
type Traces<'a> = Vec<(&'a Source, Trace)>;

/// Traces of one folder are one run, unless two are of the same rank and in different subfolders: then each of those
/// is a run.
fn set_apart(name: String, traces: Traces<'_>) -> Vec<(String, Traces<'_>)> {
    let mut ranks = HashSet::new();
    let twice = traces.iter().filter_map(|(_, trace)| trace.rank).any(|rank| !ranks.insert(rank));
    let runs = group(traces, |(source, _)| {
        source.path.parent().filter(|_| twice && !source.named.as_os_str().is_empty())
    });
    let name = |folder: Option<&Path>| folder.map_or_else(|| name.clone(), name_of);
    runs.into_iter().map(|(folder, traces)| (name(folder), traces)).collect()
}

/// What has the same key, in the order of the first of each.
fn group<K: PartialEq, T>(all: impl IntoIterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for one in all {
        let own = key(&one);
        match groups.iter_mut().find(|(key, _)| *key == own) {
            Some((_, group)) => group.push(one),
            None => groups.push((own, vec![one])),
        }
    }
    groups
}

/// Gives runs that are otherwise the same their names as a setting.
fn tell_apart(runs: &mut [(String, Imported)]) {
    let cases: Vec<_> = runs.iter().map(|(_, run)| run.case.clone()).collect();
    for (name, run) in runs {
        if cases.iter().filter(|case| **case == run.case).count() > 1 {
            run.case.settings.insert("run".into(), name.clone());
        }
    }
}

/// All recognised files below paths. An unknown file given by the user is an error; one inside a
/// folder is skipped.
fn gather(paths: &[PathBuf], left_out: &mut LeftOut) -> Result<Vec<Source>, ImportError> {
    let mut sources = Vec::new();
    let mut seen: HashSet<PathBuf> = HashSet::new();
    for named in paths {
        let io = |source| ImportError::Io { path: named.clone(), source };
        let folder = fs::metadata(named).map_err(io)?.is_dir();
        let mut files = Vec::new();
        if StudyFolder::is_study(named) {
            let see = "is already a study: use `paceline report` or `paceline explain`";
            return Err(ImportError::bad(named, see));
        }
        collect(named, DEEP, &mut files)?;
        // Links may reach a file more than once.
        files.retain(|path| path.canonicalize().map_or(true, |path| seen.insert(path)));
        let named = if folder { named.clone() } else { PathBuf::new() };
        for path in files {
            if let Some(format) = recognise(&path)? {
                sources.push(Source { path, format, named: named.clone() });
                continue;
            }
            let head = open::head(&path, HEAD)?;
            let what = unknown::describe(&head).unwrap_or_else(|| match head.is_empty() {
                true => "empty".into(),
                false if folder => "text; tables are read file by file".into(),
                false => "unknown format; read are a PyTorch trace, an nvprof or Nsight Systems profile, an XPlane profile of \
                          JAX or TensorFlow, a Horovod timeline, a TensorBoard event file, a tf_cnn_benchmarks log, a \
                          metric.log and nvidia-smi's output; `paceline explain` reads tables"
                    .into(),
            });
            if !folder {
                return Err(ImportError::bad(path, what));
            }
            left_out.note(what, &named, &path);
        }
    }
    match sources.is_empty() {
        true => Err(left_out.refuse(paths)),
        false => Ok(sources),
    }
}

/// The first of some names.
fn list(names: &[String]) -> String {
    let named = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED { format!("{named} and {} more", names.len() - NAMED) } else { named }
}

/// The files below a path in the order of their names, with numbers in them counted as numbers.
fn collect(path: &Path, deep: usize, files: &mut Vec<PathBuf>) -> Result<(), ImportError> {
    let io = |source| ImportError::Io { path: path.into(), source };
    let kind = fs::metadata(path).map_err(io)?;
    if !kind.is_dir() {
        if files.len() == MOST_FILES {
            return Err(ImportError::bad(path, format!("too many files: at most {MOST_FILES} are imported")));
        }
        files.push(path.into());
        return Ok(());
    }
    let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(io)?.collect();
    let mut inside: Vec<PathBuf> = entries.map_err(io)?.iter().map(fs::DirEntry::path).collect();
    inside.sort_by_key(|path| natural(&path.to_string_lossy()));
    // A folder that links back to itself ends here; a pipe, which may block forever, is not a file; and a study, such
    // as an earlier import, has event files that we wrote ourselves.
    if deep > 0 {
        let mut readable =
            inside.iter().filter(|path| path.is_file() || path.is_dir() && !StudyFolder::is_study(path));
        readable.try_for_each(|path| collect(path, deep - 1, files))?;
    }
    Ok(())
}

/// A key in whose order rank-2 comes before rank-10: numbers are filled up with zeros.
fn natural(text: &str) -> String {
    let parts = text.as_bytes().chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
    let width = |part: &[u8]| if part[0].is_ascii_digit() { 20 } else { 0 };
    parts.map(|part| format!("{:0>1$}", String::from_utf8_lossy(part), width(part))).collect()
}

/// Groups traces: those of one folder, and those given individually.
fn traces(sources: &[Source]) -> Vec<(String, Vec<&Source>)> {
    let is_trace =
        |source: &&Source| matches!(source.format, Format::Kineto | Format::Sqlite | Format::XPlane);
    let name = |named: &Path, first: &Source| {
        name_of(if named.as_os_str().is_empty() { &first.path } else { named })
    };
    let runs = group(sources.iter().filter(is_trace), |source| source.named.as_path());
    runs.into_iter().map(|(named, files)| (name(named, files[0]), files)).collect()
}

/// A log, and the rank that its name gives.
pub type LogFile<'a> = (&'a Path, Option<Rank>);

/// A run: its name, and its logs with the ranks in their names.
type Logs<'a> = (String, Vec<(&'a Source, Option<Rank>)>);

/// Logs of a format. Where names in a folder tell ranks apart, all logs in it are one run; any other is a run by itself, except one of
/// tf_cnn_benchmarks that lies above those of the ranks: its launcher may have kept what all of them wrote.
fn group_logs(sources: &[Source], format: Format) -> Vec<Logs<'_>> {
    let by_rank = |source: &Source| {
        // The names of event files end with any numbers.
        let mut levels = source.path.ancestors().skip(usize::from(format == Format::Events)).take(2);
        let (path, rank) = levels.find_map(|path| Some((path, rank_in(path)?)))?;
        (!source.named.as_os_str().is_empty()).then_some((path.parent()?.to_path_buf(), rank))
    };
    let logs: Vec<_> = sources
        .iter()
        .filter(|source| source.format == format)
        .map(|source| (source, by_rank(source)))
        .collect();
    let mut homes: BTreeMap<&Path, BTreeSet<Rank>> = BTreeMap::new();
    for (home, rank) in logs.iter().filter_map(|(_, by_rank)| by_rank.as_ref()) {
        homes.entry(home).or_default().insert(*rank);
    }
    // A single file with a number in its name is no rank; a single folder of that name is one.
    let in_files = |home: &Path| logs.iter().any(|(source, _)| source.path.parent() == Some(home));
    homes.retain(|home, ranks| ranks.len() > 1 || !in_files(home));
    let mut runs: Vec<Logs<'_>> = Vec::new();
    let mut places: HashMap<&Path, usize> = HashMap::new();
    for (source, by_rank) in &logs {
        let own = by_rank.as_ref().filter(|(home, _)| homes.contains_key(home.as_path()));
        let below = || {
            let folder = source.path.parent().filter(|_| format == Format::TfCnn && by_rank.is_none())?;
            let mut below = homes.keys().filter(|home| home.starts_with(folder));
            below.next().filter(|_| below.next().is_none()).copied()
        };
        let home = own.map(|(home, _)| home.as_path()).or_else(below);
        let new = runs.len();
        let place = home.map_or(new, |home| *places.entry(home).or_insert(new));
        if place == new {
            // mpirun numbers its jobs: the folder above has the name.
            let is_number = |path: &&Path| name_of(path).chars().all(|letter| letter.is_ascii_digit());
            let folder = home.and_then(|home| home.ancestors().find(|path| !is_number(path)));
            let alone =
                if format == Format::Events { source.path.parent() } else { Some(source.path.as_path()) };
            runs.push((folder.or(alone).map_or_else(|| "run".into(), name_of), Vec::new()));
        }
        runs[place].1.push((source, own.map(|(_, rank)| *rank)));
    }
    runs
}

/// The rank in the name of a file or folder: `rank.07`, `rank-3`, or `out.1.07` as older versions of mpirun name them.
fn rank_in(path: &Path) -> Option<Rank> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let number = match name.rsplit_once("rank") {
        Some((_, rest)) => {
            let rest = rest.trim_start_matches(['.', '-', '_', '=']);
            rest.split(|letter: char| !letter.is_ascii_digit()).next()?.to_owned()
        }
        None => {
            let (rest, number) = name.rsplit_once('.')?;
            rest.ends_with(".1").then(|| number.to_owned())?
        }
    };
    number.parse().ok().map(Rank)
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    let stem = name.split('.').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let name: String = stem.chars().take(60).map(plain).collect();
    if name.is_empty() { "run".into() } else { name }
}

#[cfg(test)]
mod tests;
