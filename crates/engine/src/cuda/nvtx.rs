//! NVTX ranges: names for what the host does, shown by Nsight and other profilers. No library is needed: a profiler names
//! itself in `NVTX_INJECTION64_PATH` and fills in its functions. Without one, a range costs one branch.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt::Display;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStringExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::object::Object;

/// A named span of this thread's time; it ends when this is dropped.
#[must_use = "the range ends when this is dropped"]
pub struct Range {
    tool: Option<Tool>,
    /// Ranges of a thread are a stack: they end where they began.
    _on_this_thread: PhantomData<*const ()>,
}

/// Begins a range of this thread. The name is formatted only where a profiler is attached.
pub fn range(name: impl Display) -> Range {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    Range::begin(*TOOL.get_or_init(Tool::find), name)
}

impl Range {
    fn begin(tool: Option<Tool>, name: impl Display) -> Self {
        if let Some(tool) = tool {
            let mut name = name.to_string().into_bytes();
            name.retain(|&byte| byte != 0);
            let name = CString::new(name).expect("invariant: zeros are gone");
            // SAFETY: the tool's own function, with a string that ends with a zero.
            unsafe { (tool.push)(name.as_ptr()) };
        }
        Self { tool, _on_this_thread: PhantomData }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(tool) = self.tool {
            // SAFETY: the tool's own function; a range of this thread is open.
            unsafe { (tool.pop)() };
        }
    }
}

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;
type Export = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(Export) -> c_int;

/// The functions of an attached profiler.
#[derive(Clone, Copy)]
struct Tool {
    push: Push,
    pop: Pop,
}

impl Tool {
    /// The profiler that is attached to this process, if any.
    fn find() -> Option<Self> {
        let path = std::env::var_os("NVTX_INJECTION64_PATH")?;
        let library = Object::open(&CString::new(path.into_vec()).ok()?).ok()??;
        // SAFETY: NVTX gives the function this type.
        Self::attach(unsafe { library.symbol(c"InitializeInjectionNvtx2") }?)
    }

    /// Lets a tool fill in its functions.
    fn attach(initialize: Initialize) -> Option<Self> {
        // SAFETY: a tool's function, with what NVTX hands it.
        if unsafe { initialize(export) } == 0 {
            return None;
        }
        let function =
            |slot: usize| Some(FUNCTIONS[CORE][slot].load(Ordering::Acquire)).filter(|at| !at.is_null());
        let (push, pop) = (function(RANGE_PUSH)?, function(RANGE_POP)?);
        // SAFETY: tools put functions of these types into these slots.
        Some(unsafe {
            Self {
                push: std::mem::transmute::<*mut c_void, Push>(push),
                pop: std::mem::transmute::<*mut c_void, Pop>(pop),
            }
        })
    }
}

/// Slots of NVTX's modules, by their numbers, the first of each unused: core, CUDA, OpenCL, CUDA's runtime, domains, waiting.
const SLOTS: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;
const CORE: usize = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

/// What tools write their functions into.
static FUNCTIONS: [[AtomicPtr<c_void>; MOST]; SLOTS.len()] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; MOST] }; SLOTS.len()];

/// Addresses of a module's slots, null at both ends.
struct Table([*const AtomicPtr<c_void>; MOST + 1]);

// SAFETY: addresses of statics.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static TABLES: OnceLock<[Table; SLOTS.len()]> = OnceLock::new();

fn tables() -> &'static [Table; SLOTS.len()] {
    TABLES.get_or_init(|| {
        std::array::from_fn(|module| {
            let slot = |slot: usize| match slot {
                1.. if slot < SLOTS[module] => &raw const FUNCTIONS[module][slot],
                _ => ptr::null(),
            };
            Table(std::array::from_fn(slot))
        })
    })
}

/// How a tool asks for the slots of a module.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    table_of: unsafe extern "C" fn(c_uint, *mut *const *const AtomicPtr<c_void>, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), table_of };

/// How a tool asks for NVTX's version, and tells its own.
#[repr(C)]
struct Versions {
    bytes: usize,
    version: u32,
    reserved: u32,
    tell: unsafe extern "C" fn(u32),
}

static VERSIONS: Versions = Versions { bytes: size_of::<Versions>(), version: 3, reserved: 0, tell };

unsafe extern "C" fn tell(_version: u32) {}

unsafe extern "C" fn export(table: u32) -> *const c_void {
    match table {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSIONS).cast(),
        _ => ptr::null(),
    }
}

/// Answers 0 for a module that is not there.
unsafe extern "C" fn table_of(
    module: c_uint,
    table: *mut *const *const AtomicPtr<c_void>,
    slots: *mut c_uint,
) -> c_int {
    let Some(count) = SLOTS.get(module as usize).copied().filter(|&count| count > 0) else { return 0 };
    // SAFETY: a tool gives places for the answers, or null.
    unsafe {
        if !table.is_null() {
            *table = tables()[module as usize].0.as_ptr();
        }
        if !slots.is_null() {
            *slots = count as c_uint;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::CStr;

    use super::*;

    thread_local! {
        static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    fn note(text: String) {
        SEEN.with_borrow_mut(|seen| seen.push(text));
    }

    unsafe extern "C" fn push(name: *const c_char) -> c_int {
        // SAFETY: ranges pass strings that end with a zero.
        note(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        note("end".into());
        0
    }

    /// Fills in its functions as tools do, all that there is room for.
    unsafe extern "C" fn watch(export: Export) -> c_int {
        // SAFETY: the tables are what NVTX says they are.
        unsafe {
            let versions = &*export(3).cast::<Versions>();
            assert_eq!((versions.bytes, versions.version), (24, 3));
            (versions.tell)(3);
            assert!(export(2).is_null());
            let callbacks = &*export(1).cast::<Callbacks>();
            assert_eq!(callbacks.bytes, 16);
            let (mut table, mut slots) = (ptr::null(), 0);
            assert_eq!((callbacks.table_of)(0, &mut table, &mut slots), 0);
            assert_eq!((callbacks.table_of)(7, &mut table, &mut slots), 0);
            for module in 1..7 {
                assert_eq!((callbacks.table_of)(module, &mut table, &mut slots), 1);
                assert!((*table).is_null() && (*table.add(slots as usize)).is_null());
                for slot in 1..slots as usize {
                    assert!(!(*table.add(slot)).is_null(), "module {module}, slot {slot}");
                }
            }
            assert_eq!((callbacks.table_of)(1, &mut table, ptr::null_mut()), 1);
            (**table.add(9)).store(push as *mut c_void, Ordering::Release);
            (**table.add(11)).store(pop as *mut c_void, Ordering::Release);
        }
        1
    }

    unsafe extern "C" fn refuse(_export: Export) -> c_int {
        0
    }

    #[test]
    fn a_profiler_sees_nested_ranges_by_name() {
        let tool = Tool::attach(watch);
        assert!(tool.is_some());
        {
            let _step = Range::begin(tool, "step");
            drop(Range::begin(tool, format_args!("bucket {}", 3)));
            drop(Range::begin(tool, "a zero\0 inside"));
        }
        assert_eq!(SEEN.take(), ["step", "bucket 3", "end", "a zero inside", "end", "end"]);
    }

    #[test]
    fn without_a_profiler_no_name_is_formatted() {
        struct Never;
        impl Display for Never {
            fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                panic!("nobody asked")
            }
        }
        assert!(Tool::attach(refuse).is_none(), "a tool that cannot start watches nothing");
        drop(Range::begin(None, Never));
        drop(range("step"));
        assert_eq!(SEEN.take(), [""; 0]);
    }
}
