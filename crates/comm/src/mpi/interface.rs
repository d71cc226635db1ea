//! The part of MPI that is used: the seam that tests put a fake behind, and the real library behind the three binary interfaces
//! that there are.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libloading::Library as Object;

use crate::CommError;

/// What is asked of MPI, all of it by one thread. A message that is under way has a *place*, from 0 on: as many as were asked for
/// when it was begun.
pub trait Interface {
    /// This process' number.
    fn rank(&self) -> u32;
    /// How many there are.
    fn world(&self) -> u32;
    /// Begins to send bytes to a rank.
    ///
    /// # Safety
    /// They stay valid and as they are until [`test`](Self::test) has told this place, which nothing else is under way at.
    unsafe fn send(&mut self, place: usize, to: u32, from: *const u8, len: usize) -> Result<(), CommError>;
    /// Begins to receive a message of at most `len` bytes. Those of a rank come in the order in which they were sent.
    ///
    /// # Safety
    /// The room stays valid and nobody touches it until [`test`](Self::test) has told this place, which nothing else is under way
    /// at.
    unsafe fn receive(&mut self, place: usize, from: u32, into: *mut u8, len: usize)
    -> Result<(), CommError>;
    /// Lets MPI work, and adds the places of what is done since this was last asked.
    fn test(&mut self, done: &mut Vec<usize>) -> Result<(), CommError>;
    /// Gives up a receive that nothing has come for; [`test`](Self::test) tells its place, whether something has come meanwhile or not.
    fn cancel(&mut self, place: usize) -> Result<(), CommError>;
    /// The library's own all-reduce (sum), which waits for all ranks.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CommError>;
    /// Waits for all ranks.
    fn barrier(&mut self) -> Result<(), CommError>;
    /// Leaves MPI for good; nothing may be under way.
    fn finalize(&mut self) -> Result<(), CommError>;
}

/// The most values of one call: counts are 32-bit integers.
const MOST: usize = 1 << 30;

/// The tag of all messages; their first bytes tell what they are.
const TAG: c_int = 7;

/// How handles look, and which values the constants have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// Addresses of objects that the library exports.
    OpenMpi,
    /// Integers with values of their own: MPICH, Intel, MVAPICH, Cray.
    Mpich,
    /// The standard's own, since MPI 5.0.
    Standard,
}

impl Abi {
    /// That of a library, by what it exports.
    pub(super) fn of(object: &Object) -> Self {
        let has = |name: &str| {
            // SAFETY: only its presence is asked for.
            unsafe { object.get::<*const c_void>(name).is_ok() }
        };
        if has("ompi_mpi_comm_world") {
            return Self::OpenMpi;
        }
        let (mut major, mut minor): (c_int, c_int) = (-1, -1);
        // SAFETY: so the standard declares it; it may be called at any time, and writes two numbers.
        if let Ok(ask) = unsafe {
            object.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>("MPI_Abi_get_version")
        } {
            // SAFETY: as above.
            unsafe { ask(&mut major, &mut minor) };
        }
        // MPICH's own libraries have the function, too, and answer -1.
        if major >= 1 { Self::Standard } else { Self::Mpich }
    }

    /// Begins MPI with this library. To be called once in a process.
    pub(super) fn begin(self, object: Object, places: usize) -> Result<Box<dyn Interface>, CommError> {
        Ok(match self {
            Self::OpenMpi => {
                let at = |name: &'static str| -> Result<*mut c_void, CommError> {
                    // SAFETY: the address of an exported object; nothing is read through it here, and the library stays loaded.
                    let found =
                        unsafe { object.get::<*mut c_void>(name).map(|symbol| symbol.try_as_raw_ptr()) };
                    found.ok().flatten().ok_or_else(|| lacks(name))
                };
                let constants = Constants {
                    world: at("ompi_mpi_comm_world")?,
                    byte: at("ompi_mpi_byte")?,
                    float: at("ompi_mpi_float")?,
                    sum: at("ompi_mpi_op_sum")?,
                    errors_return: at("ompi_mpi_errors_return")?,
                    nothing: at("ompi_request_null")?,
                    in_place: ptr::without_provenance(1),
                    ignore: ptr::null_mut(),
                    funneled: 1,
                };
                Box::new(Job::begin(object, constants, places)?)
            }
            Self::Mpich => {
                let constants = Constants {
                    world: 0x4400_0000,
                    byte: 0x4c00_010d,
                    float: 0x4c00_040a,
                    sum: 0x5800_0003,
                    errors_return: 0x5400_0001,
                    nothing: 0x2c00_0000,
                    in_place: ptr::without_provenance(usize::MAX),
                    ignore: ptr::without_provenance_mut(1),
                    funneled: 1,
                };
                Box::new(Job::<c_int>::begin(object, constants, places)?)
            }
            Self::Standard => {
                let constants = Constants {
                    world: ptr::without_provenance_mut(0x101),
                    byte: ptr::without_provenance_mut(0x247),
                    float: ptr::without_provenance_mut(0x210),
                    sum: ptr::without_provenance_mut(0x21),
                    errors_return: ptr::without_provenance_mut(0x143),
                    nothing: ptr::without_provenance_mut(0x180),
                    in_place: ptr::without_provenance(1),
                    ignore: ptr::null_mut(),
                    funneled: 1024,
                };
                Box::new(Job::<*mut c_void>::begin(object, constants, places)?)
            }
        })
    }
}

fn lacks(function: &'static str) -> CommError {
    CommError::Mpi { call: function, answer: "the library does not have it".into() }
}

struct Constants<H> {
    world: H,
    byte: H,
    float: H,
    sum: H,
    errors_return: H,
    /// A request for nothing.
    nothing: H,
    in_place: *const c_void,
    /// Where results of requests would go that nobody asks for.
    ignore: *mut c_void,
    /// The level of threads at which one of them makes all calls.
    funneled: c_int,
}

/// Declares functions of the library with the standard's types, where `H` is a handle.
macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Functions<H> {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl<H: 'static> Functions<H> {
            /// Takes them out of the library.
            fn take(object: &Object) -> Result<Self, CommError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: so the standard declares it, with this interface's handles.
                        let found = unsafe { object.get(stringify!($name)) };
                        *found.map_err(|_| lacks(stringify!($name)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    MPI_Init_thread(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    MPI_Finalize();
    MPI_Comm_rank(H, *mut c_int);
    MPI_Comm_size(H, *mut c_int);
    MPI_Comm_set_errhandler(H, H);
    MPI_Isend(*const c_void, c_int, H, c_int, c_int, H, *mut H);
    MPI_Irecv(*mut c_void, c_int, H, c_int, c_int, H, *mut H);
    MPI_Testsome(c_int, *mut H, *mut c_int, *mut c_int, *mut c_void);
    MPI_Cancel(*mut H);
    MPI_Allreduce(*const c_void, *mut c_void, c_int, H, H, H);
    MPI_Barrier(H);
    MPI_Error_string(c_int, *mut c_char, *mut c_int);
}

/// Room for any error's text: the three interfaces ask for 256 to 1024 bytes.
const ERROR: usize = 8192;

/// MPI, begun. Handles are addresses or integers.
struct Job<H: 'static> {
    functions: Functions<H>,
    constants: Constants<H>,
    rank: u32,
    world: u32,
    /// By place; a request for nothing where nothing is under way.
    requests: Vec<H>,
    indices: Vec<c_int>,
    _object: Object,
}

impl<H: Copy + 'static> Job<H> {
    fn begin(object: Object, constants: Constants<H>, places: usize) -> Result<Self, CommError> {
        let functions = Functions::take(&object)?;
        let mut job = Self {
            functions,
            rank: 0,
            world: 0,
            requests: vec![constants.nothing; places],
            indices: vec![0; places],
            constants,
            _object: object,
        };
        let mut given = 0;
        // SAFETY: it takes no arguments of ours, and writes one number.
        let code = unsafe {
            (job.functions.MPI_Init_thread)(
                ptr::null_mut(),
                ptr::null_mut(),
                job.constants.funneled,
                &mut given,
            )
        };
        job.check("MPI_Init_thread", code)?;
        if given < job.constants.funneled {
            let answer = "it allows no other threads in the process".into();
            return Err(CommError::Mpi { call: "MPI_Init_thread", answer });
        }
        let (mut rank, mut world): (c_int, c_int) = (-1, -1);
        // SAFETY: the handles are the library's own, and each call writes one number at most.
        let codes = unsafe {
            let world_comm = job.constants.world;
            [
                (job.functions.MPI_Comm_set_errhandler)(world_comm, job.constants.errors_return),
                (job.functions.MPI_Comm_rank)(world_comm, &mut rank),
                (job.functions.MPI_Comm_size)(world_comm, &mut world),
            ]
        };
        for (call, code) in
            ["MPI_Comm_set_errhandler", "MPI_Comm_rank", "MPI_Comm_size"].into_iter().zip(codes)
        {
            job.check(call, code)?;
        }
        (job.rank, job.world) = (rank as u32, world as u32);
        Ok(job)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CommError> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut len): ([u8; ERROR], c_int) = ([0; ERROR], 0);
        // SAFETY: there is room for the longest text of any of them.
        unsafe { (self.functions.MPI_Error_string)(code, text.as_mut_ptr().cast(), &mut len) };
        let text = &text[..usize::try_from(len).unwrap_or(0).min(ERROR)];
        let text = String::from_utf8_lossy(text);
        Err(CommError::Mpi { call, answer: text.trim_end_matches('\0').trim().to_owned() })
    }
}

impl<H: Copy + 'static> Interface for Job<H> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    unsafe fn send(&mut self, place: usize, to: u32, from: *const u8, len: usize) -> Result<(), CommError> {
        let Constants { world, byte, .. } = self.constants;
        // SAFETY: the caller vouches for the bytes; the request is this place's, where nothing is under way.
        let code = unsafe {
            let request = &raw mut self.requests[place];
            (self.functions.MPI_Isend)(from.cast(), len as c_int, byte, to as c_int, TAG, world, request)
        };
        self.check("MPI_Isend", code)
    }

    unsafe fn receive(
        &mut self,
        place: usize,
        from: u32,
        into: *mut u8,
        len: usize,
    ) -> Result<(), CommError> {
        let Constants { world, byte, .. } = self.constants;
        // SAFETY: the caller vouches for the room; the request is this place's, where nothing is under way.
        let code = unsafe {
            let request = &raw mut self.requests[place];
            (self.functions.MPI_Irecv)(into.cast(), len as c_int, byte, from as c_int, TAG, world, request)
        };
        self.check("MPI_Irecv", code)
    }

    fn test(&mut self, done: &mut Vec<usize>) -> Result<(), CommError> {
        let mut count: c_int = 0;
        // SAFETY: both lists are as long as is said; results of requests are not asked for.
        let code = unsafe {
            (self.functions.MPI_Testsome)(
                self.requests.len() as c_int,
                self.requests.as_mut_ptr(),
                &mut count,
                self.indices.as_mut_ptr(),
                self.constants.ignore,
            )
        };
        self.check("MPI_Testsome", code)?;
        // A negative count says that nothing is under way.
        let count = usize::try_from(count).unwrap_or(0);
        done.extend(self.indices[..count].iter().map(|&index| index as usize));
        Ok(())
    }

    fn cancel(&mut self, place: usize) -> Result<(), CommError> {
        // SAFETY: the request is under way.
        let code = unsafe { (self.functions.MPI_Cancel)(&mut self.requests[place]) };
        self.check("MPI_Cancel", code)
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let Constants { world, float, sum, in_place, .. } = self.constants;
        for part in values.chunks_mut(MOST) {
            // SAFETY: the values are this call's until it returns.
            let code = unsafe {
                let at = part.as_mut_ptr().cast();
                (self.functions.MPI_Allreduce)(in_place, at, part.len() as c_int, float, sum, world)
            };
            self.check("MPI_Allreduce", code)?;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        // SAFETY: the handle is the library's own.
        let code = unsafe { (self.functions.MPI_Barrier)(self.constants.world) };
        self.check("MPI_Barrier", code)
    }

    fn finalize(&mut self) -> Result<(), CommError> {
        // SAFETY: nothing is under way, as the caller says, and nothing is called after it.
        let code = unsafe { (self.functions.MPI_Finalize)() };
        self.check("MPI_Finalize", code)
    }
}
