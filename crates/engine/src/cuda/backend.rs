//! Convolutions through cuDNN's graph interface: graphs of one operation, and every engine that its heuristics name.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use cudarc::cudnn::sys;
use sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Mode, cudnnDataType_t as Data,
};

use super::driver::Stream;
use super::product::{Direction, Product};
use crate::{EngineError, Layout, Precision};

fn check(status: sys::cudnnStatus_t, call: &str) -> Result<(), EngineError> {
    if status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    let mut text = [0 as c_char; 512];
    // SAFETY: the buffer has the length that is given.
    let answer = unsafe {
        sys::cudnnGetLastErrorString(text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    };
    Err(EngineError::Device { call: call.to_owned(), answer: format!("{status:?} {answer}") })
}

/// cuDNN's state.
#[derive(Debug)]
pub(super) struct Handle(sys::cudnnHandle_t);

// SAFETY: used by one thread at a time.
unsafe impl Send for Handle {}

impl Handle {
    pub fn new() -> Result<Self, EngineError> {
        let mut handle = ptr::null_mut();
        // SAFETY: a place for the handle.
        check(unsafe { sys::cudnnCreate(&mut handle) }, "cudnnCreate")?;
        Ok(Self(handle))
    }

    /// Selects the stream of what runs next.
    pub fn set_stream(&self, stream: &Stream) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        check(unsafe { sys::cudnnSetStream(self.0, stream.0.cast()) }, "cudnnSetStream")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::cudnnDestroy(self.0) };
    }
}

/// One of cuDNN's descriptors.
#[derive(Debug)]
struct Descriptor(sys::cudnnBackendDescriptor_t);

// SAFETY: used by one thread at a time.
unsafe impl Send for Descriptor {}

impl Descriptor {
    fn new(kind: Kind) -> Result<Self, EngineError> {
        let mut descriptor = ptr::null_mut();
        // SAFETY: a place for the descriptor.
        let status = unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut descriptor) };
        check(status, "cudnnBackendCreateDescriptor")?;
        Ok(Self(descriptor))
    }

    fn set<V>(&self, name: Name, kind: Type, values: &[V]) -> Result<(), EngineError> {
        // SAFETY: `kind` is what the values are, as all calls below show.
        let status = unsafe {
            sys::cudnnBackendSetAttribute(self.0, name, kind, values.len() as i64, values.as_ptr().cast())
        };
        check(status, &format!("setting {name:?}"))
    }

    fn set_parts(&self, name: Name, parts: &[&Descriptor]) -> Result<(), EngineError> {
        let parts: Vec<*mut c_void> = parts.iter().map(|part| part.0).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &parts)
    }

    fn get<V>(&self, name: Name, kind: Type, into: &mut [V]) -> Result<usize, EngineError> {
        let mut count = 0;
        // SAFETY: as in `set`; no more values are written than there are places.
        let status = unsafe {
            sys::cudnnBackendGetAttribute(
                self.0,
                name,
                kind,
                into.len() as i64,
                &mut count,
                into.as_mut_ptr().cast(),
            )
        };
        check(status, &format!("asking for {name:?}"))?;
        Ok((count.max(0) as usize).min(into.len()))
    }

    fn finish(self, what: &str) -> Result<Self, EngineError> {
        // SAFETY: the descriptor is alive.
        check(unsafe { sys::cudnnBackendFinalize(self.0) }, what)?;
        Ok(self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

/// Names of the operands in a plan: input, weights, output.
const OPERANDS: [i64; 3] = [1, 2, 3];

/// A convolution whose engine is not chosen yet.
#[derive(Debug)]
pub(super) struct Candidates {
    engines: Vec<Descriptor>,
    _graph: Vec<Descriptor>,
}

/// A convolution, ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    plan: Descriptor,
    pub workspace: usize,
    _from: Vec<Descriptor>,
}

fn tensor(id: i64, dims: [i64; 4], strides: [i64; 4], data: Data) -> Result<Descriptor, EngineError> {
    let tensor = Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[id])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[data])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[16i64])?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &dims)?;
    tensor.set(Name::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &strides)?;
    tensor.finish("describing a tensor")
}

/// Strides of dimensions in the order N, C, H, W.
fn strides(layout: Layout, [_, c, h, w]: [i64; 4]) -> [i64; 4] {
    match layout {
        Layout::Nhwc => [h * w * c, 1, w * c, c],
        Layout::Nchw => [c * h * w, h * w, w, 1],
    }
}

impl Candidates {
    /// All engines that cuDNN recommends for a product, in its order, except those whose results vary from run to run, that
    /// compute with less precision than asked for, or that compile at every start.
    pub fn find(handle: &Handle, product: &Product, direction: Direction) -> Result<Self, EngineError> {
        let data = match product.precision {
            Precision::Bf16 => Data::CUDNN_DATA_BFLOAT16,
            Precision::Fp32 | Precision::Tf32 => Data::CUDNN_DATA_FLOAT,
        };
        let numbers = |values: [usize; 4]| values.map(|value| value as i64);
        let (x, y) = (product.input, product.output);
        let x = numbers([product.batch, x.c, x.h, x.w]);
        let y = numbers([product.batch, y.c, y.h, y.w]);
        let w =
            numbers([product.output.c, product.input.c / product.groups, product.kernel.0, product.kernel.1]);
        let describe = |id, dims| tensor(id, dims, strides(product.layout, dims), data);
        let tensors = [describe(1, x)?, describe(2, w)?, describe(3, y)?];

        let pair = |(down, across): (usize, usize)| [down as i64, across as i64];
        let conv = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        conv.set(
            Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
            Type::CUDNN_TYPE_DATA_TYPE,
            &[Data::CUDNN_DATA_FLOAT],
        )?;
        let mode = [sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION];
        conv.set(Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &mode)?;
        let border = product.border;
        for (name, values) in [
            (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, [1, 1]),
            (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, pair(product.stride)),
            (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pair((border.top, border.left))),
            (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pair((border.bottom, border.right))),
        ] {
            conv.set(name, Type::CUDNN_TYPE_INT64, &values)?;
        }
        conv.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Type::CUDNN_TYPE_INT64, &[2i64])?;
        let conv = conv.finish("describing a convolution")?;

        use Name::*;
        let (kind, [x, w, y, conv_name, alpha, beta]) = match direction {
            Direction::Forward => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            Direction::Data => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            Direction::Filter => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let operation = Descriptor::new(kind)?;
        for (name, tensor) in [x, w, y].into_iter().zip(&tensors) {
            operation.set_parts(name, &[tensor])?;
        }
        operation.set_parts(conv_name, &[&conv])?;
        operation.set(alpha, Type::CUDNN_TYPE_FLOAT, &[1.0f32])?;
        operation.set(beta, Type::CUDNN_TYPE_FLOAT, &[0.0f32])?;
        let operation = operation.finish("describing an operation")?;
        let graph = Descriptor::new(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set_parts(CUDNN_ATTR_OPERATIONGRAPH_OPS, &[&operation])?;
        graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.0])?;
        let graph = graph.finish("describing a graph")?;

        let mut engines = Vec::new();
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            engines.extend(
                recommended(&graph, mode)?
                    .into_iter()
                    .filter(|engine| is_suitable(engine, product.precision)),
            );
        }
        let mut parts: Vec<Descriptor> = tensors.into();
        parts.extend([conv, operation, graph]);
        Ok(Self { engines, _graph: parts })
    }

    pub fn len(&self) -> usize {
        self.engines.len()
    }

    /// cuDNN's number of an engine, and the engine's settings; empty where cuDNN does not tell.
    pub fn name(&self, index: usize) -> String {
        self.engines.get(index).and_then(|engine| name(engine).ok()).unwrap_or_default()
    }

    /// Prepares one of them; an error where the engine does not support the product after all.
    pub fn plan(&self, handle: &Handle, index: usize) -> Result<Plan, EngineError> {
        let engine = self.engines.get(index).ok_or_else(|| EngineError::Device {
            call: "choosing an engine of cuDNN".into(),
            answer: format!("it has {} for this, not {}", self.engines.len(), index + 1),
        })?;
        let plan = Descriptor::new(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set(Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle.0])?;
        plan.set_parts(Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[engine])?;
        let plan = plan.finish("preparing a convolution")?;
        let mut workspace = [0i64];
        plan.get(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64, &mut workspace)?;
        Ok(Plan { plan, workspace: workspace[0].max(0) as usize, _from: Vec::new() })
    }

    /// A plan that keeps alive what it was made from.
    pub fn into_plan(mut self, handle: &Handle, index: usize) -> Result<Plan, EngineError> {
        let mut plan = self.plan(handle, index)?;
        plan._from.append(&mut self.engines);
        plan._from.append(&mut self._graph);
        Ok(plan)
    }
}

/// The most engines that are considered.
const MOST: usize = 16;

fn recommended(graph: &Descriptor, mode: Mode) -> Result<Vec<Descriptor>, EngineError> {
    let heuristics = Descriptor::new(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set_parts(Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    heuristics.set(Name::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    // A mode that does not know this operation has no engine.
    let Ok(heuristics) = heuristics.finish("asking for engines") else { return Ok(Vec::new()) };
    let mut engines = (0..MOST)
        .map(|_| Descriptor::new(Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
        .collect::<Result<Vec<_>, _>>()?;
    let mut raw: Vec<*mut c_void> = engines.iter().map(|engine| engine.0).collect();
    let kind = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    let count = heuristics.get(Name::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, &mut raw)?;
    engines.truncate(count);
    Ok(engines)
}

/// The most settings of an engine.
const KNOBS: usize = 64;

fn name(config: &Descriptor) -> Result<String, EngineError> {
    let engine = engine_of(config)?;
    let mut number = [0i64];
    engine.get(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64, &mut number)?;
    let knobs = (0..KNOBS)
        .map(|_| Descriptor::new(Kind::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR))
        .collect::<Result<Vec<_>, _>>()?;
    let mut raw: Vec<*mut c_void> = knobs.iter().map(|knob| knob.0).collect();
    let kind = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    let count = config.get(Name::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, kind, &mut raw)?;
    let mut settings = Vec::new();
    for knob in &knobs[..count] {
        let (mut which, mut value) = ([0u32], [0i64]);
        knob.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, Type::CUDNN_TYPE_KNOB_TYPE, &mut which)?;
        knob.get(Name::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, Type::CUDNN_TYPE_INT64, &mut value)?;
        settings.push((which[0], value[0]));
    }
    settings.sort_unstable();
    let settings: String = settings.into_iter().map(|(which, value)| format!("_k{which}={value}")).collect();
    Ok(format!("eng{}{settings}", number[0]))
}

fn engine_of(config: &Descriptor) -> Result<Descriptor, EngineError> {
    let engine = Descriptor::new(Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    let kind = Type::CUDNN_TYPE_BACKEND_DESCRIPTOR;
    config.get(Name::CUDNN_ATTR_ENGINECFG_ENGINE, kind, &mut [engine.0])?;
    Ok(engine)
}

fn is_suitable(config: &Descriptor, precision: Precision) -> bool {
    let notes = || -> Result<(Vec<u32>, Vec<u32>), EngineError> {
        let engine = engine_of(config)?;
        let mut numerical = vec![0u32; 16];
        let kind = Type::CUDNN_TYPE_NUMERICAL_NOTE;
        let count = engine.get(Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kind, &mut numerical)?;
        numerical.truncate(count);
        let mut behavior = vec![0u32; 16];
        let kind = Type::CUDNN_TYPE_BEHAVIOR_NOTE;
        let count = engine.get(Name::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, kind, &mut behavior)?;
        behavior.truncate(count);
        Ok((numerical, behavior))
    };
    let Ok((numerical, behavior)) = notes() else { return false };
    use sys::{cudnnBackendBehaviorNote_t as Behavior, cudnnBackendNumericalNote_t as Note};
    let has = |note: Note| numerical.contains(&(note as u32));
    let rough = has(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
        || has(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)
        || has(Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
    let compiles = behavior.contains(&(Behavior::CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION as u32));
    let changes = has(Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    !(changes || compiles || precision == Precision::Fp32 && rough)
}

impl Plan {
    /// Puts a run on the handle's stream. Operands are the addresses of input, weights and output.
    pub fn run(&self, handle: &Handle, operands: [u64; 3], workspace: u64) -> Result<(), EngineError> {
        let pack = Descriptor::new(Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &operands)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, &OPERANDS)?;
        pack.set(Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        let pack = pack.finish("describing operands")?;
        // SAFETY: the addresses are those of buffers of the plan's sizes, as the lowering ensures.
        check(unsafe { sys::cudnnBackendExecute(handle.0, self.plan.0, pack.0) }, "a convolution")
    }
}
