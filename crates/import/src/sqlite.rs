//! Profiles in SQLite files: opened read-only, and treated as hostile.
//!
//! No expression in the file is evaluated: views, virtual tables and generated columns are not read, and no query
//! has a condition. So the work is one pass over each table, with a row limit that follows from the file's size.

mod cupti;
mod gather;
mod name;
mod steps;
#[cfg(test)]
pub(super) mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row};

use super::{ImportError, nsys, nvprof};
use crate::trace::Trace;

pub(super) use cupti::{process, read as read_cupti};
pub(super) use gather::{Event, Gather, Place};
pub(super) use name::without_version;

/// The first bytes of every SQLite file.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// A longer text or blob is not loaded: the output of a profiled program is stored among the names.
const LONGEST_TEXT: usize = 256 << 10;

/// No row or value may be larger; SQLite gives up on those that are.
const LONGEST_VALUE: i32 = 16 << 20;

/// Limit for all strings of a file; further ones are skipped.
const ALL_STRINGS: usize = 256 << 20;

/// Smallest row: two bytes of offset, one each of length, number, header and a column's type.
const SHORTEST_ROW: u64 = 6;

/// Tables that only Nsight Systems writes; any of them may be missing.
const NSYS: [&str; 5] =
    ["StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "TARGET_INFO_SESSION_START_TIME", "NVTX_EVENTS"];

/// Columns that hold text or bytes; their length is asked before they are read.
const LONG_COLUMNS: [&str; 5] = ["value", "name", "label", "text", "objectId"];

/// Whether a file with this beginning is an SQLite file. [`read`] says which ones it refuses.
pub fn recognise(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// One trace per process.
pub fn read(path: &Path) -> Result<Vec<Trace>, ImportError> {
    let database = Database::open(path)?;
    let has = |test: fn(&str) -> bool| database.tables.keys().any(|table| test(table));
    if has(|table| NSYS.contains(&table)) {
        nsys::read_tables(database)
    } else if has(|table| table == "StringTable" || table.starts_with("CUPTI_ACTIVITY_KIND_")) {
        nvprof::read_tables(database)
    } else {
        let why = "is an SQLite file, but not from nvprof or Nsight Systems (`nsys export --type sqlite`)";
        Err(ImportError::bad(path, why))
    }
}

/// A read-only SQLite file.
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    /// Columns of each table that may be read.
    tables: HashMap<String, HashSet<String>>,
    rows_left: u64,
    /// What could not be read, one sentence each.
    pub(super) warnings: Vec<String>,
}

impl Database {
    fn open(path: &Path) -> Result<Self, ImportError> {
        let length = path.metadata().map_err(|source| ImportError::Io { path: path.into(), source })?.len();
        let mut database = connect(path, length)
            .map(|connection| Self {
                connection,
                path: path.into(),
                tables: HashMap::new(),
                rows_left: 3 * (length / SHORTEST_ROW + 64),
                warnings: Vec::new(),
            })
            .map_err(|error| ImportError::bad(path, format!("SQLite cannot open it: {error}")))?;
        database
            .find_tables()
            .map_err(|error| ImportError::bad(path, format!("its list of tables is damaged: {error}")))?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        if Path::new(&log).metadata().is_ok_and(|log| log.len() > 0) {
            let why =
                "it has a -wal file with changes, which was not read: close the program that writes it first";
            database.warnings.push(why.into());
        }
        Ok(database)
    }

    /// Ordinary tables only: a view could be an endless query.
    fn find_tables(&mut self) -> rusqlite::Result<()> {
        let mut statement = self.connection.prepare(
            "SELECT list.name, info.name FROM sqlite_master AS list, pragma_table_info(list.name, 'main') AS info \
             WHERE list.type = 'table' AND rootpage > 0 AND sql LIKE 'create table%'",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let fields = Fields { row };
            if let (Some(table), Some(column)) = (fields.text(0), fields.text(1)) {
                self.tables.entry(table.into_owned()).or_default().insert(column.into_owned());
            }
        }
        Ok(())
    }

    /// Whether a table has the column.
    pub(super) fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.contains(column))
    }

    /// Visits every row of a table. A missing table has no rows, a missing column is NULL. If
    /// the file is damaged, rows before the damage are used, with a warning.
    pub(super) fn scan(
        &mut self,
        table: &str,
        columns: &[&str],
        mut each: impl FnMut(&Fields<'_, '_>),
    ) -> Result<(), ImportError> {
        let Some(known) = self.tables.get(table) else { return Ok(()) };
        let expression = |column: &&str| match known.contains(*column) {
            false => "NULL".into(),
            true if LONG_COLUMNS.contains(column) => {
                let column = quote(column);
                format!("CASE WHEN octet_length({column}) <= {LONGEST_TEXT} THEN {column} END")
            }
            true => quote(column),
        };
        let list: Vec<String> = columns.iter().map(expression).collect();
        let query = format!("SELECT {} FROM main.{}", list.join(", "), quote(table));
        let mut count = 0_u64;
        let mut scan = || -> rusqlite::Result<()> {
            let mut statement = self.connection.prepare(&query)?;
            let mut rows = statement.query([])?;
            while count < self.rows_left
                && let Some(row) = rows.next()?
            {
                count += 1;
                each(&Fields { row });
            }
            Ok(())
        };
        let end = scan();
        self.rows_left -= count;
        match end {
            Ok(()) if self.rows_left > 0 => Ok(()),
            Ok(()) => {
                Err(self.bad(format!("{table} has more rows than the file has room for: it is damaged")))
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
                Err(self.bad(format!("reading {table} does not end: the file is damaged")))
            }
            Err(error) => {
                self.warnings
                    .push(format!("{table}: {error} after {count} rows; the rest of the table was skipped"));
                Ok(())
            }
        }
    }

    /// Texts of a table by their numbers; C++ names as their authors wrote them.
    pub(super) fn strings(
        &mut self,
        table: &str,
        id: &str,
        text: &str,
    ) -> Result<HashMap<i64, String>, ImportError> {
        let (mut strings, mut bytes) = (HashMap::new(), 0);
        self.scan(table, &[id, text], |row| {
            if let (Some(id), Some(text)) = (row.integer(0), row.text(1))
                && bytes + text.len() <= ALL_STRINGS
            {
                let text = name::demangle(&text);
                bytes += text.len();
                strings.insert(id, text);
            }
        })?;
        Ok(strings)
    }

    /// An error of this file.
    pub(super) fn bad(&self, why: impl Into<String>) -> ImportError {
        ImportError::bad(&self.path, why)
    }
}

/// Columns of a row. SQLite allows any type in any column: a value of another type is `None`.
pub(super) struct Fields<'row, 'statement> {
    row: &'row Row<'statement>,
}

impl Fields<'_, '_> {
    /// A whole number.
    pub(super) fn integer(&self, at: usize) -> Option<i64> {
        match self.row.get_ref(at).ok()? {
            ValueRef::Integer(value) => Some(value),
            ValueRef::Real(value) if value.fract() == 0.0 && value.abs() < 2_f64.powi(53) => {
                Some(value as i64)
            }
            _ => None,
        }
    }

    /// A number that cannot be negative.
    pub(super) fn count(&self, at: usize) -> Option<u64> {
        self.integer(at)?.try_into().ok()
    }

    /// A text; bytes that are not UTF-8 are replaced.
    pub(super) fn text(&self, at: usize) -> Option<Cow<'_, str>> {
        match self.row.get_ref(at).ok()? {
            ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes)),
            _ => None,
        }
    }

    /// Bytes as they are.
    pub(super) fn blob(&self, at: usize) -> Option<&[u8]> {
        match self.row.get_ref(at).ok()? {
            ValueRef::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// `immutable` promises that nobody writes, so SQLite does not lock, look for a journal, or leave files behind.
fn connect(path: &Path, length: u64) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(uri(path), flags)?;
    // The guard comes first: the list of tables is parsed at the first query, and may be hostile itself.
    let deadline = Instant::now() + Duration::from_secs(20 + length / (4 << 20));
    connection.progress_handler(100, Some(move || Instant::now() > deadline))?;
    for (option, value) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_DQS_DML, false),
    ] {
        connection.set_db_config(option, value)?;
    }
    for (limit, value) in [
        (Limit::SQLITE_LIMIT_LENGTH, LONGEST_VALUE),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 10),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ] {
        connection.set_limit(limit, value)?;
    }
    connection.execute_batch("PRAGMA query_only = ON; PRAGMA cell_size_check = ON")?;
    Ok(connection)
}

/// The address under which SQLite opens a file of any name, even one that is not UTF-8.
fn uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    // A path of `//x` would be taken for a host.
    if path.is_absolute() {
        uri.push_str("//");
    }
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri + "?mode=ro&immutable=1"
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
