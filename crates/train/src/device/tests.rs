use std::sync::Mutex;

use paceline_comm::nccl::{Call, Handle};
use paceline_engine::Place;

use super::*;
use crate::hosts::Hosts;
use crate::job::tests::job;
use crate::{Bounds, Elastic, Strategy};

/// A library that writes down what it is asked for.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
}

impl Recorder {
    fn note(&self, call: String) -> Result<(), CommError> {
        self.calls.lock().unwrap().push(call);
        Ok(())
    }
}

impl Interface for Recorder {
    fn unique_id(&self) -> Result<UniqueId, CommError> {
        Ok([1; 128])
    }

    fn context(&self) -> Result<usize, CommError> {
        Ok(0)
    }

    fn enter(&self, _: usize) -> Result<(), CommError> {
        Ok(())
    }

    fn init_rank(&self, _: u32, _: UniqueId, rank: Rank) -> Result<Handle, CommError> {
        // SAFETY: it is only a number here.
        Ok(unsafe { Handle::new(rank.0 as usize) })
    }

    fn all_reduce(&self, _: Handle, call: Call) -> Result<(), CommError> {
        self.note(format!("all-reduce {} values at {} on {}", call.len(), call.from(), call.stream()))
    }

    fn reduce_scatter(&self, _: Handle, call: Call) -> Result<(), CommError> {
        self.note(format!("reduce-scatter {} from {} into {}", call.len(), call.from(), call.into()))
    }

    fn all_gather(&self, _: Handle, call: Call) -> Result<(), CommError> {
        self.note(format!("all-gather {} from {} into {}", call.len(), call.from(), call.into()))
    }

    fn reduce(&self, _: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        self.note(format!("reduce {} to {root}", call.len()))
    }

    fn broadcast(&self, _: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        self.note(format!("broadcast {} from {root}", call.len()))
    }

    fn group_start(&self) -> Result<(), CommError> {
        self.note("group".into())
    }

    fn group_end(&self) -> Result<(), CommError> {
        self.note("end".into())
    }

    fn async_error(&self, _: Handle) -> Result<(), CommError> {
        Ok(())
    }

    fn abort(&self, _: Handle) {
        let _ = self.note("abort".into());
    }

    fn destroy(&self, _: Handle) {
        let _ = self.note("destroy".into());
    }
}

/// What a rank of a world of two asks for in a step over one bucket of values 128..256, and what it updates.
fn step(strategy: Strategy, rank: u32) -> (Vec<String>, Range<usize>) {
    let library = Arc::new(Recorder::default());
    let seat = Seat { group: [1; 128], rank: Rank(rank), world: 2 };
    let nccl = Nccl::join(library.clone(), seat, PATIENCE).expect("joined");
    let joined = Joined { nccl, recall: Box::new(|| false) };
    let plan = strategy.plan(Rank(rank), 2);
    let mut weave = weave_with(joined, plan, &ExchangeOptions::default(), &[0..128, 128..256]);
    // SAFETY: nobody looks at the values: the library only takes notes.
    let region = |address: u64, len: usize| unsafe { Region::new(Place::Device(0), address, len) };
    let gathered = weave.gathered.map(|ranks| region(5000, 128 * ranks));
    let exchanged = Exchanged { own: region(1000, 128), gathered };
    weave.link.put_gradients(1, exchanged, 9).expect("put");
    weave.link.put_parameters(1, region(2000, 128), 9).expect("put");
    drop(weave.link);
    let mut calls = library.calls.lock().unwrap().clone();
    assert_eq!(calls.pop().as_deref(), Some("destroy"), "the group is left");
    (calls, weave.buckets[1].updated.clone())
}

#[test]
fn each_strategy_asks_nccl_for_its_operations() {
    assert_eq!(step(Strategy::AllReduce, 1), (vec!["all-reduce 128 values at 1000 on 9".into()], 128..256));
    let sharded = |rank: u64, start: usize| {
        let own = 4 * (64 * rank);
        let calls = vec![
            format!("reduce-scatter 64 from 1000 into {}", 1000 + own),
            format!("all-gather 64 from {} into 2000", 2000 + own),
        ];
        (calls, start..start + 64)
    };
    assert_eq!(step(Strategy::Sharded, 0), sharded(0, 128));
    assert_eq!(step(Strategy::Sharded, 1), sharded(1, 192));
    assert_eq!(step(Strategy::Replicated, 0), (vec!["all-gather 128 from 1000 into 5000".into()], 128..256));
    let server = vec!["reduce 128 to 0".to_owned(), "broadcast 128 from 0".to_owned()];
    assert_eq!(step(Strategy::PsGpu, 0), (server.clone(), 128..256));
    assert_eq!(step(Strategy::PsGpu, 1), (server, 128..128), "the server updates for all");
}

#[test]
fn gpus_exchange_by_themselves_where_nothing_needs_the_host() {
    let cuda = Job { engine: CUDA.into(), workers: 2, ..job("case".as_ref()) };
    assert!(cuda.exchanges_on_device());
    for update in [Strategy::Sharded, Strategy::Replicated, Strategy::PsGpu] {
        assert!(Job { update, ..cuda.clone() }.exchanges_on_device(), "{update}");
    }
    for update in [Strategy::PsCpu, Strategy::Independent] {
        assert!(!Job { update, ..cuda.clone() }.exchanges_on_device(), "{update}");
    }
    assert!(!Job { share_gpu: true, ..cuda.clone() }.exchanges_on_device());
    assert!(!Job { shards: Some(4), ..cuda.clone() }.exchanges_on_device());
    assert!(!Job { engine: "cpu".into(), ..cuda.clone() }.exchanges_on_device());
    let one = Job { workers: 1, ..cuda };
    assert!(!one.exchanges_on_device());
    let exchange = ExchangeOptions { alone: true, ..one.exchange };
    assert!(Job { exchange, ..one }.exchanges_on_device());
}

#[test]
fn what_means_nothing_to_an_engine_or_a_strategy_is_refused() {
    let cpu = job("case".as_ref());
    let ps = Job { update: Strategy::PsGpu, ..cpu.clone() };
    let error = ps.check().expect_err("no GPU").to_string();
    assert!(error.contains("ps-gpu") && error.contains("--engine cuda"), "{error}");
    for engine in ["cpu", "simulated"] {
        let shared = Job { share_gpu: true, engine: engine.into(), ..cpu.clone() };
        let error = shared.check().expect_err("no GPU").to_string();
        assert!(error.contains("--share-gpu") && error.contains("--engine cuda"), "{error}");
    }
    let exchange = ExchangeOptions { alone: true, ..cpu.exchange };
    let error =
        Job { update: Strategy::Independent, exchange, ..cpu }.check().expect_err("nothing to exchange");
    assert!(matches!(error, TrainError::LonelyExchange), "{error}");
    let error = TrainError::TooFewDevices { workers: 4, devices: 1 }.to_string();
    assert!(
        error.contains("4 workers") && error.contains("has 1") && error.contains("--share-gpu"),
        "{error}"
    );
}

/// A job for one GPU on each of two hosts.
fn on_two_hosts() -> Job {
    let hosts = Hosts { min: 2, max: 2, workers: 1, local: false };
    Job { engine: CUDA.into(), workers: 1, hosts: Some(hosts), ..job("case".as_ref()) }
}

#[test]
fn gpus_of_several_hosts_are_one_group_with_all_its_ranks() {
    let two = on_two_hosts();
    assert!(two.exchanges_on_device() && two.check_group().is_ok());
    assert!(!Job { share_gpu: true, ..two.clone() }.exchanges_on_device());
    assert!(!Job { engine: "cpu".into(), ..two.clone() }.exchanges_on_device());
    let one = Hosts { min: 1, max: 1, workers: 1, local: false };
    assert!(Job { hosts: Some(one), ..two.clone() }.exchanges_on_device(), "a group of one is one");
    let elastic = Some(Elastic::new(Bounds { min: 1, max: 2 }));
    let four = Job { workers: 2, hosts: Some(Hosts { workers: 2, ..one }), elastic, ..two };
    assert_eq!(four.crew().bounds(), Bounds { min: 2, max: 2 }, "nobody goes on without a rank");
}

#[test]
fn what_a_group_of_gpus_cannot_do_is_refused_in_words() {
    let two = on_two_hosts();
    let hosts = two.hosts.expect("two");
    let elastic = Some(Elastic::new(Bounds { min: 1, max: 2 }));
    let refused = [
        (Job { hosts: Some(Hosts { min: 1, ..hosts }), ..two.clone() }, "the number of hosts is fixed"),
        (Job { elastic, ..two.clone() }, "--workers is the same on all hosts"),
        (
            Job { hosts: Some(Hosts { workers: 3, ..hosts }), ..two.clone() },
            "--workers is the same on all hosts",
        ),
        (Job { update: Strategy::Sharded, ..two.clone() }, "--update allreduce"),
        (Job { shards: Some(4), ..two.clone() }, "leave --shards out"),
        (Job { log_samples: true, ..two.clone() }, "--log-samples"),
        (Job { hosts: None, elastic: Some(Elastic::new(Bounds { min: 1, max: 1 })), ..two }, "--hosts N"),
    ];
    for (job, expected) in refused {
        let error = job.check().expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("--share-gpu"), "{error}");
    }
}
