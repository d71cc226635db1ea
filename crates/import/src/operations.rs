//! Names of collectives and copies: one table for kernels, operators, calls of MPI, and Horovod's activities.

use crate::trace::Kind;

/// Spellings without separators and in small letters, those that contain others first, and the name of the operation.
const OPERATIONS: [(&str, &str); 15] = [
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("scan", "scan"),
    ("send", "send"),
    ("recv", "recv"),
];

/// How many of the first of these only a collective is named after. Kernels that reduce, gather or scatter are many.
const UNMISTAKABLE: usize = 5;

/// The operation that a name has in it: `all_reduce` of `allreduce_`, `MPI_Iallreduce`, `NCCL_ALLREDUCE` and
/// `ncclDevKernel_AllReduce_Sum_f32_RING_LL`.
pub fn operation(name: &str) -> Option<&'static str> {
    let flat = flatten(function(name));
    OPERATIONS.iter().find(|(spelling, _)| flat.contains(spelling)).map(|(_, operation)| *operation)
}

/// The operation of a kernel that is a collective; `None` for others. Libraries of collectives name all of their kernels
/// after themselves; kernels over symmetric memory and those of inference servers say what they do.
pub fn of_kernel(name: &str) -> Option<&'static str> {
    let path = name.strip_prefix("void ").unwrap_or(name);
    let own = function(path);
    let flat = flatten(own);
    let library = ["nccl", "rccl", "msccl", "nvshmem"].iter().find(|library| own.starts_with(**library));
    if let Some(library) = library {
        return operation(own).or_else(|| flat.contains("kernel").then_some(library));
    }
    if path.contains("deep_ep::") {
        return ["dispatch", "combine"].into_iter().find(|operation| own.ends_with(operation));
    }
    // The barrier of older versions is known by its argument only: the flags of all ranks.
    let symmetric = ["symmetric_memory::", "symm_mem", "multimem", "barrier_kernel(unsigned int**"];
    if symmetric.iter().any(|word| path.contains(word)) {
        return operation(own).or(Some("symmetric_memory"));
    }
    // Threads of one block reduce among each other, too; a compiler names a kernel after all operators around it.
    let computes = ["block", "warp"].iter().any(|word| flat.contains(word)) || own.starts_with("triton_");
    let known = OPERATIONS[..UNMISTAKABLE].iter().find(|(spelling, _)| flat.contains(spelling));
    known.filter(|_| !computes).map(|(_, operation)| *operation)
}

/// Whether all ranks take part in an operation, so that one of a rank has its like on the others.
pub fn is_collective(operation: &str) -> bool {
    !["send", "recv", "send_recv", "wait", "peer_copy"].contains(&operation)
}

/// The direction of a copy: `Memcpy HtoD (Pinned -> Device)`, `MemcpyH2D`, or `CopyHostToDevice` on AMD's devices.
pub fn of_copy(name: &str) -> Kind {
    let says = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if says(&["HtoD", "HtoA", "H2D", "HostToDevice"]) {
        Kind::CopyIn
    } else if says(&["DtoH", "AtoH", "D2H", "DeviceToHost"]) {
        Kind::CopyOut
    } else {
        Kind::CopyDevice
    }
}

/// What a kernel does with which AMD's runtime copies or fills memory.
pub fn of_runtime(kernel: &str) -> Option<Kind> {
    let own = kernel.strip_prefix("__amd_rocclr_")?;
    let kinds = [("copy", Kind::CopyDevice), ("fill", Kind::Fill)];
    kinds.into_iter().find(|(prefix, _)| own.starts_with(prefix)).map(|(_, kind)| kind)
}

/// Bytes of a number, by the name of its type in PyTorch (`Float`), C++ (`c10::Half`, `long int`) or TensorFlow (`float32`).
pub fn element_size(name: &str) -> Option<u64> {
    const SIZES: [(u64, &str); 5] = [
        (1, "byte, char, bool, signed char, unsigned char, int8, uint8"),
        (2, "half, bfloat16, short, short int, int16, uint16, float16"),
        (4, "float, int, int32, uint32, float32, complexhalf"),
        (8, "double, long, long int, int64, uint64, float64, complexfloat"),
        (16, "complexdouble"),
    ];
    let name = name.strip_prefix("c10::").unwrap_or(name);
    let name = name.strip_prefix("at::").unwrap_or(name).to_ascii_lowercase();
    let known = SIZES.iter().find(|(_, names)| names.split(", ").any(|known| known == name));
    known.map(|(size, _)| *size).or(name.starts_with("float8").then_some(1))
}

/// What an event of the host says about a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// `record_param_comms`: knows the arguments. Lasts as long as the transfer only where the call waits for it.
    Arguments,
    /// `c10d::...`: the operator that was called.
    Call,
    /// `gloo:...` and its like: the thread that moves the data.
    Transfer,
    /// A kernel: the device that moves the data.
    Device,
    /// `nccl:...` and its like: the launch of a kernel.
    Launch,
}

impl Source {
    /// What an event of the host with this name is.
    pub fn of_host(name: &str) -> Option<Self> {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if starts(&["gloo:", "mpi:", "ucc:"]) {
            Some(Self::Transfer)
        } else if starts(&["nccl:", "xccl:", "hccl:", "symm_mem::"]) {
            Some(Self::Launch)
        } else if starts(&["c10d::", "_c10d_functional::", "c10d_functional::"]) {
            Some(Self::Call)
        } else {
            (name == "record_param_comms").then_some(Self::Arguments)
        }
    }
}

/// The own name of a function, without its namespaces, template arguments and parameters.
fn function(name: &str) -> &str {
    // A namespace without a name is written with brackets.
    const NAMELESS: [&str; 3] = ["(anonymous namespace)", "<unnamed>", "{anonymous}"];
    let mut rest = name;
    loop {
        let bracket = rest.find(['(', '<', '{']).unwrap_or(rest.len());
        match NAMELESS.iter().find_map(|nameless| rest[bracket..].strip_prefix(nameless)) {
            Some(after) => rest = after,
            None => return rest[..bracket].rsplit(':').next().unwrap_or_default(),
        }
    }
}

fn flatten(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_operation_gets_one_name() {
        for (name, expected) in [
            ("_allgather_base", Some("all_gather")),
            ("gloo:all_reduce", Some("all_reduce")),
            ("c10d::alltoall_base_", Some("all_to_all")),
            ("MPI_Iallreduce", Some("all_reduce")),
            ("MPI_Reduce_scatter_block", Some("reduce_scatter")),
            ("MPI_Ibcast", Some("broadcast")),
            ("MPI_Send", Some("send")),
            ("MPI_Init", None),
            ("NCCL_ALLREDUCE", Some("all_reduce")),
            ("MPI_BCAST", Some("broadcast")),
            ("gloo:something", None),
        ] {
            assert_eq!(operation(name), expected, "{name}");
        }
    }

    #[test]
    fn kernels_of_collectives_are_told_from_those_that_compute() {
        for (kernel, expected) in [
            ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
            (
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "reduce_scatter",
            ),
            ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
            ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "nccl"),
            ("ncclSymkDevKernel_AllReduce_AGxLL_R_Sum_bf16(...)", "all_reduce"),
            ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", "msccl"),
            (
                "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
                "all_reduce",
            ),
            ("void <unnamed>::one_shot_all_reduce_kernel<float, (int)16>(float **)", "all_reduce"),
            (
                "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(...)",
                "all_reduce",
            ),
            ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "all_gather"),
            (
                "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
                "barrier",
            ),
            ("c10d::symmetric_memory::put_signal_kernel(unsigned int**)", "symmetric_memory"),
            (
                "c10d::symmetric_memory::(anonymous namespace)::multimem_one_shot_reduce_kernel<float>()",
                "reduce",
            ),
            ("void (anonymous namespace)::multimem_copy_kernel<16>(char*)", "symmetric_memory"),
            ("symm_mem_barrier_kernel", "barrier"),
            ("void barrier_kernel(unsigned int**, unsigned long, unsigned long, unsigned long)", "barrier"),
            ("void deep_ep::intranode::dispatch<8, 768>(int4*, float*)", "dispatch"),
            ("void deep_ep::internode_ll::combine<true, 7168>(void*)", "combine"),
            ("nvshmemi_transfer_kernel(int)", "nvshmem"),
            ("rccl_main_kernel(ncclDevComm*)", "rccl"),
            ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
            ("void sglang::cross_device_reduce_2stage<half, 4>(...)", "all_reduce"),
            ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)", "all_reduce"),
            (
                "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>(...)",
                "all_reduce",
            ),
        ] {
            assert_eq!(of_kernel(kernel), Some(expected), "{kernel}");
        }
        for kernel in [
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::sum_functor> >(...)",
            "void at::native::vectorized_gather_kernel<16, long>(char*)",
            "reduce_kernel<ncclAllReduceKernel>",
            "ncclRing(int)",
            "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*)",
            "barrier_kernel(float*)",
            "block_all_reduce_sum_f32_kernel(float*, float*, int)",
            "void at::native::(anonymous namespace)::soft_max<4, (anonymous namespace)::all_reduce>(float*)",
            "triton_poi_fused_all_gather_into_tensor_wait_tensor_0",
            "",
        ] {
            assert_eq!(of_kernel(kernel), None, "{kernel}");
        }
    }
}
