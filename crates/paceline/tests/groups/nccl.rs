//! A stand-in for NCCL between processes of one machine whose "devices" are plain memory, built as `libnccl.so.2`.
//!
//! All ranks of a group are connected with the process that made up the group's name. It adds up what they send and sends the mean
//! back. As with NCCL, joining blocks until all have come; operations return at once and are done in order; whoever waits for a rank
//! that is gone waits until its own side gives the group up. A "stream" is the address of a count of operations that are done.
//! Every join is noted in the file that `STAND_IN_LOG` names: a line with the name, the rank, the world and the process.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;

const SUCCESS: c_uint = 0;
const SYSTEM_ERROR: c_uint = 2;
const INVALID_USAGE: c_uint = 5;
const REMOTE_ERROR: c_uint = 6;

#[repr(C)]
pub struct Name([c_char; 128]);

struct Work {
    from: usize,
    into: usize,
    len: usize,
    stream: usize,
}

struct Comm {
    work: Mutex<Option<Sender<Work>>>,
    socket: TcpStream,
    over: Arc<AtomicBool>,
    failed: Arc<AtomicU32>,
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: *mut c_int) -> c_uint {
    unsafe { *version = 22_900 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_uint) -> *const c_char {
    match status {
        REMOTE_ERROR => c"remote process exited or there was a network error".as_ptr(),
        SYSTEM_ERROR => c"unhandled system error".as_ptr(),
        _ => c"invalid usage".as_ptr(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    c"".as_ptr()
}

/// A name is the port of whoever made it up, its process, and a number.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(name: *mut Name) -> c_uint {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return SYSTEM_ERROR };
    let Ok(address) = listener.local_addr() else { return SYSTEM_ERROR };
    let mut bytes = [0u8; 128];
    bytes[..2].copy_from_slice(&address.port().to_ne_bytes());
    bytes[2..6].copy_from_slice(&std::process::id().to_ne_bytes());
    bytes[6..14].copy_from_slice(&MADE.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
    unsafe { *name = Name(bytes.map(|byte| byte as c_char)) };
    thread::spawn(move || serve(listener));
    SUCCESS
}

/// Lets all ranks in, and adds up what they send; ends with the first that goes.
fn serve(listener: TcpListener) -> Option<()> {
    let mut ranks: Vec<Option<TcpStream>> = Vec::new();
    while ranks.is_empty() || ranks.iter().any(Option::is_none) {
        let (mut stream, _) = listener.accept().ok()?;
        stream.set_nodelay(true).ok()?;
        let mut hello = [0u8; 8];
        stream.read_exact(&mut hello).ok()?;
        let [rank, world] = [0, 4].map(|at| u32::from_ne_bytes(hello[at..at + 4].try_into().unwrap()) as usize);
        ranks.resize_with(world, || None);
        ranks[rank] = Some(stream);
    }
    drop(listener);
    let mut ranks: Vec<TcpStream> = ranks.into_iter().flatten().collect();
    for stream in &mut ranks {
        stream.write_all(&[1]).ok()?;
    }
    loop {
        let mut sum: Vec<f32> = Vec::new();
        for stream in &mut ranks {
            let mut len = [0u8; 8];
            // The others are left waiting, as NCCL leaves them.
            if stream.read_exact(&mut len).is_err() {
                return wait_for_all_to_go(ranks);
            }
            let mut bytes = vec![0u8; 4 * u64::from_ne_bytes(len) as usize];
            if stream.read_exact(&mut bytes).is_err() {
                return wait_for_all_to_go(ranks);
            }
            let values = bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap()));
            match sum.is_empty() {
                true => sum = values.collect(),
                false => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            }
        }
        let world = ranks.len() as f32;
        let bytes: Vec<u8> = sum.iter().flat_map(|sum| (sum / world).to_ne_bytes()).collect();
        for stream in &mut ranks {
            let _ = stream.write_all(&bytes);
        }
    }
}

fn wait_for_all_to_go(ranks: Vec<TcpStream>) -> Option<()> {
    for mut stream in ranks {
        let mut rest = [0u8; 4096];
        while stream.read(&mut rest).is_ok_and(|count| count > 0) {}
    }
    None
}

fn join(name: &Name, rank: c_int, world: c_int) -> std::io::Result<Comm> {
    let bytes = name.0.map(|byte| byte as u8);
    if let Some(path) = std::env::var_os("STAND_IN_LOG") {
        let text: String = bytes[..14].iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{text} {rank} {world} {}\n", std::process::id());
        File::options().append(true).create(true).open(path)?.write_all(line.as_bytes())?;
    }
    let port = u16::from_ne_bytes([bytes[0], bytes[1]]);
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_nodelay(true)?;
    let hello: Vec<u8> = [rank as u32, world as u32].into_iter().flat_map(u32::to_ne_bytes).collect();
    socket.write_all(&hello)?;
    socket.read_exact(&mut [0u8])?;
    let (send, works) = mpsc::channel::<Work>();
    let (over, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(SUCCESS)));
    let (ends, fails, mut stream) = (over.clone(), failed.clone(), socket.try_clone()?);
    thread::spawn(move || {
        for Work { from, into, len, stream: done } in works {
            let values = unsafe { std::slice::from_raw_parts(from as *const u8, 4 * len) };
            let mut answer = vec![0u8; 4 * len];
            let sent = stream.write_all(&(len as u64).to_ne_bytes()).and_then(|()| stream.write_all(values));
            if sent.and_then(|()| stream.read_exact(&mut answer)).is_err() {
                fails.store(REMOTE_ERROR, Ordering::Release);
                return;
            }
            if ends.load(Ordering::Acquire) {
                return;
            }
            unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), into as *mut u8, answer.len()) };
            unsafe { &*(done as *const AtomicU64) }.fetch_add(1, Ordering::Release);
        }
    });
    Ok(Comm { work: Mutex::new(Some(send)), socket, over, failed })
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRank(comm: *mut *mut c_void, world: c_int, name: Name, rank: c_int) -> c_uint {
    match join(&name, rank, world) {
        Ok(joined) => {
            unsafe { *comm = Box::into_raw(Box::new(joined)).cast() };
            SUCCESS
        }
        Err(_) => SYSTEM_ERROR,
    }
}

fn comm<'a>(comm: *mut c_void) -> &'a Comm {
    unsafe { &*comm.cast() }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(handle: *mut c_void, status: *mut c_uint) -> c_uint {
    unsafe { *status = comm(handle).failed.load(Ordering::Acquire) };
    SUCCESS
}

/// What is left of a group is never freed: threads may still look at it.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(handle: *mut c_void) -> c_uint {
    comm(handle).over.store(true, Ordering::Release);
    let _ = comm(handle).socket.shutdown(Shutdown::Both);
    drop(comm(handle).work.lock().unwrap().take());
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclCommDestroy(handle: *mut c_void) -> c_uint {
    drop(comm(handle).work.lock().unwrap().take());
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    from: *const c_void,
    into: *mut c_void,
    len: usize,
    _: c_uint,
    _: c_uint,
    handle: *mut c_void,
    stream: *mut c_void,
) -> c_uint {
    let work = Work { from: from as usize, into: into as usize, len, stream: stream as usize };
    match &*comm(handle).work.lock().unwrap() {
        // It says nothing of a group that has failed: that is asked for.
        Some(works) => drop(works.send(work)),
        None => return INVALID_USAGE,
    }
    SUCCESS
}

macro_rules! missing {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_uint {
            INVALID_USAGE
        })*
    };
}

missing! { ncclReduceScatter ncclAllGather ncclReduce ncclBroadcast ncclGroupStart ncclGroupEnd }
