"""Training loops as users write them, followed within this process."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import unittest
import unittest.mock
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from following import FollowCase, Rank
from paceline import Log, follow, hooks


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def loader(count=40, batch=8):
    return DataLoader(TensorDataset(torch.randn(count, 16), torch.randint(4, (count,))), batch)


def loss_of(model, inputs, labels):
    return nn.functional.cross_entropy(model(inputs), labels)


class Followed(FollowCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.follow()
        hooks.has_compiled = False  # whatever the tests before did
        self.addCleanup(hooks.listen, None)

    def follow(self, **order):
        hooks.install(torch)
        self.follower = follow.Follower(torch, self.order(**order))
        hooks.listen(self.follower)

    def ended(self):
        """The follower closes as at the end of a process; what it wrote."""
        self.assertFalse(self.follower.off)
        self.follower.close()
        self.follower.roots.release()
        return Rank(os.path.join(self.out, "rank-0.jsonl"))

    def train(self, batches):
        for inputs, labels in batches:
            self.optimizer.zero_grad()
            loss_of(self.model, inputs, labels).backward()
            self.optimizer.step()


class Loops(Followed):
    def test_a_plain_loop(self):
        self.train(loader())
        rank = self.ended()
        self.check_steps(rank, 5, "load", "forward", "backward", "update")
        self.assertEqual([step["examples"] for step in rank.steps], [8] * 5)
        self.assertEqual(rank.header["case"]["model"], "Sequential")
        self.assertEqual(rank.header["case"]["batch_per_worker"], 8)
        self.assertEqual((rank.header["world"], rank.header["case"]["precision"]), (1, "fp32"))
        self.assertIn("off_core", rank.steps[2]["scheduling"])
        self.assertLessEqual(rank.main["at"], rank.steps[0]["begin"])
        self.assertGreaterEqual(rank.done["at"], rank.steps[-1]["end"])

    def test_accumulated_passes_are_one_step(self):
        for number, (inputs, labels) in enumerate(loader(64)):
            loss_of(self.model, inputs, labels).backward()
            if number % 4 == 3:
                self.optimizer.step()
                self.optimizer.zero_grad()
        rank = self.ended()
        self.check_steps(rank, 2, "load", "forward", "backward", "update")
        self.assertEqual([step["examples"] for step in rank.steps], [32, 32])

    def test_optimizers_that_take_turns_are_one_step(self):
        other = network()
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        for inputs, labels in loader():
            for model, optimizer in ((self.model, self.optimizer), (other, second)):
                with torch.no_grad():
                    self.model(inputs)
                optimizer.zero_grad()
                loss_of(model, inputs, labels).backward()
                optimizer.step()
        rank = self.ended()
        self.check_steps(rank, 5, "load", "forward", "backward", "update")
        self.assertEqual([step["examples"] for step in rank.steps], [8] * 5)
        self.assertNotIn("eval", rank.steps[3]["phases"], "without gradients, but a step's")

    def test_evaluation_and_checkpoint_belong_to_the_step_before(self):
        for _ in range(2):
            self.model.train()
            self.train(loader(24))
            self.model.eval()
            with torch.no_grad():
                for inputs, _ in loader(32):
                    self.model(inputs)
            torch.save(self.model.state_dict(), io.BytesIO())
        rank = self.ended()
        self.check_steps(rank, 6, "load", "forward", "backward", "update")
        paused = [sorted({"eval", "checkpoint"} & set(step["phases"])) for step in rank.steps]
        self.assertEqual(paused, [[], [], ["checkpoint", "eval"]] * 2)
        self.assertEqual([step["examples"] for step in rank.steps], [8] * 6)

    def test_an_evaluation_in_training_mode_is_one_too(self):
        for _ in range(2):
            self.train(loader(24))
            with torch.no_grad():
                for inputs, _ in loader(32):
                    self.model(inputs)
        rank = self.ended()
        self.check_steps(rank, 6, "load", "forward", "backward", "update")
        self.assertEqual(["eval" in step["phases"] for step in rank.steps[:5]], [False, False, True, False, False])
        self.assertEqual([step["examples"] for step in rank.steps[:5]], [8] * 5)

    def test_without_a_loader_examples_are_the_rows_of_the_models_input(self):
        self.train([(torch.randn(6, 16), torch.randint(4, (6,)))] * 4)
        rank = self.ended()
        self.check_steps(rank, 4, "forward", "backward", "update")
        self.assertEqual([step["examples"] for step in rank.steps[1:]], [6] * 3)

    def test_batches_that_are_loaded_ahead_belong_to_the_step_that_works_on_them(self):
        def ahead(batches):
            before = None
            for batch in batches:
                if before is not None:
                    yield before
                before = batch
            yield before

        self.train(ahead(loader(36)))
        rank = self.ended()
        self.check_steps(rank, 5, "forward", "backward", "update")
        self.assertEqual([step["examples"] for step in rank.steps[1:]], [8, 8, 8, 4])

    def test_a_closure_is_computed_within_the_optimizer(self):
        for inputs, labels in loader():

            def closure():
                self.optimizer.zero_grad()
                loss = loss_of(self.model, inputs, labels)
                loss.backward()
                return loss

            self.optimizer.step(closure)
        self.check_steps(self.ended(), 5, "load", "forward", "backward", "update")

    def test_a_step_that_the_scaler_leaves_out_is_a_step(self):
        scaler = torch.amp.GradScaler("cpu")
        for number, (inputs, labels) in enumerate(loader()):
            self.optimizer.zero_grad()
            loss = loss_of(self.model, inputs, labels) * (float("inf") if number == 2 else 1)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()
        self.check_steps(self.ended(), 5, "load", "forward", "backward", "update")

    def test_sampled_steps_alone_have_phases(self):
        self.follow(sample=3)
        self.train(loader(56))
        torch.save({}, io.BytesIO())
        rank = self.ended()
        self.check_steps(rank, 7)
        self.assertEqual([step.get("sampled", True) for step in rank.steps], [True, False, False] * 2 + [True])
        self.assertEqual([set(step["phases"]) for step in rank.steps[1:3]], [set(), set()])
        self.assertEqual([step["examples"] for step in rank.steps], [8] * 7)
        self.assertEqual(set(rank.steps[3]["phases"]), {"load", "forward", "backward", "update"})

    def test_a_module_whose_methods_are_called_is_entered(self):
        class Outer(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def training_step(self, inputs, labels):
                return loss_of(self.inner, inputs, labels)

        outer = Outer(self.model)
        for inputs, labels in loader(80):
            self.optimizer.zero_grad()
            outer.training_step(inputs, labels).backward()
            self.optimizer.step()
        rank = self.ended()
        self.assertEqual(rank.header["case"]["model"], "Outer")
        self.assertTrue(all("forward" in step["phases"] for step in rank.steps[3:]), rank.steps)

    def test_a_compiled_model_keeps_one_graph_and_is_compiled_once(self):
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        whole = torch.compile(self.model, fullgraph=True, backend=backend)

        def trained(batches):
            for inputs, labels in batches:
                self.optimizer.zero_grad()
                loss_of(whole, inputs, labels).backward()
                self.optimizer.step()

        trained(loader())
        rank = self.ended()
        self.check_steps(rank, 5, "load", "forward", "backward", "update")
        self.assertEqual(len(compiled), 1)

    def test_a_model_called_within_a_compiled_function_breaks_no_graph(self):
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        whole = torch.compile(lambda *args: loss_of(self.model, *args), fullgraph=True, backend=backend)
        for inputs, labels in loader():
            self.optimizer.zero_grad()
            whole(inputs, labels).backward()
            self.optimizer.step()
        self.check_steps(self.ended(), 5, "load", "backward", "update")
        self.assertEqual(len(compiled), 1)

    def test_a_compiled_function_without_a_loader_is_compiled_once(self):
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        whole = torch.compile(lambda *args: loss_of(self.model, *args), fullgraph=True, backend=backend)
        for inputs, labels in [(torch.randn(6, 16), torch.randint(4, (6,)))] * 5:
            self.optimizer.zero_grad()
            whole(inputs, labels).backward()
            self.optimizer.step()
        self.check_steps(self.ended(), 5, "backward", "update")
        self.assertEqual(len(compiled), 1)

    def test_a_followed_model_is_not_kept_alive(self):
        self.train(loader(16))
        gone = weakref.ref(self.model)
        self.model = self.optimizer = None
        gc.collect()
        self.assertIsNone(gone())
        self.ended()

    def test_a_model_compiled_in_place_keeps_one_graph(self):
        compiled = []

        def backend(graph, inputs):
            compiled.append(graph)
            return graph

        self.model.compile(fullgraph=True, backend=backend)
        self.train(loader())
        self.check_steps(self.ended(), 5, "load", "forward", "backward", "update")
        self.assertEqual(len(compiled), 1)

    def test_a_copy_of_a_followed_model_needs_no_paceline(self):
        self.train(loader(16))
        copied = copy.deepcopy(self.model)
        copied(torch.randn(2, 16))
        path = os.path.join(self.folder, "model.pickle")
        with open(path, "wb") as file:
            pickle.dump(self.model, file)
        code = f"import pickle, torch; print(pickle.load(open({path!r}, 'rb'))(torch.ones(2, 16)).shape)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.train(loader(16))
        self.check_steps(self.ended(), 4, "load", "forward", "backward", "update")

    def test_the_same_bits_come_out(self):
        def weights():
            torch.manual_seed(1)
            self.model = network()
            self.optimizer = torch.optim.Adam(self.model.parameters())
            self.train(loader())
            return torch.cat([each.detach().flatten() for each in self.model.parameters()])

        followed = weights()
        self.ended()
        self.assertTrue(torch.equal(followed, weights()))

    def test_a_failure_in_measuring_costs_one_warning(self):
        self.follower.stamp = None
        with unittest.mock.patch.object(sys, "stderr", io.StringIO()) as told:
            self.train(loader())
            self.follower.close()
        self.assertEqual(told.getvalue().count("paceline: "), 1, told.getvalue())

    def test_a_process_that_never_steps_writes_nothing(self):
        for inputs, labels in loader():
            loss_of(self.model, inputs, labels).backward()
        self.follower.close()
        self.assertEqual(os.listdir(self.out), [])

    def test_a_second_training_gets_a_folder_of_its_own(self):
        self.train(loader())
        self.ended()
        self.follow()
        self.train(loader())
        self.follower.close()
        self.assertEqual(sorted(os.listdir(self.out)), ["2", "rank-0.jsonl"])
        self.assertEqual(len(Rank(os.path.join(self.out, "2", "rank-0.jsonl")).steps), 5)


class Exchanges(Followed):
    """A process group of one: exchanges without another process."""

    def setUp(self):
        super().setUp()
        dist.init_process_group("gloo", init_method=f"file://{self.folder}/meeting", rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)

    def arrivals(self, rank):
        return [[arrival["bytes"] for arrival in step.get("arrivals", [])] for step in rank.steps]

    def test_gradients_that_a_script_sums_itself(self):
        for inputs, labels in loader():
            self.optimizer.zero_grad()
            loss_of(self.model, inputs, labels).backward()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
            self.optimizer.step()
        rank = self.ended()
        self.check_steps(rank, 5, "load", "forward", "backward", "update", "comm_wait")
        sizes = [4 * parameter.numel() for parameter in self.model.parameters()]
        self.assertEqual(self.arrivals(rank)[2:], [sizes] * 3)

    def test_waiting_for_a_collective_that_goes_on(self):
        for inputs, labels in loader():
            self.optimizer.zero_grad()
            loss_of(self.model, inputs, labels).backward()
            works = [dist.all_reduce(each.grad, async_op=True) for each in self.model.parameters()]
            for work in works:
                work.wait()
            self.optimizer.step()
        rank = self.ended()
        self.check_steps(rank, 5, "load", "forward", "backward", "update", "comm_cpu")
        self.assertEqual([len(sizes) for sizes in self.arrivals(rank)[2:]], [4] * 3)

    def test_a_ddp_model_can_be_pickled_as_if_nobody_followed(self):
        self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.train(loader())
        self.assertEqual(self.model._comm_hooks, [])
        copy.deepcopy(self.model.module)
        rank = self.ended()
        self.check_steps(rank, 5, "load", "forward", "backward", "update", "comm_cpu")
        self.assertEqual(rank.header["case"]["model"], "Sequential")

    def test_a_hook_that_comes_late_takes_the_place_of_ours(self):
        called = []

        def own(state, bucket):
            called.append(state)
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.train(loader(16))
        self.model.register_comm_hook("mine", own)
        self.train(loader(16))
        self.assertEqual(called, ["mine"] * 2)
        with self.assertRaises(RuntimeError):
            self.model.register_comm_hook("another", own)
        self.assertEqual([len(sizes) for sizes in self.arrivals(self.ended())[2:]], [1, 1])


class Said(FollowCase):
    """`Log`, with PyTorch."""

    def test_a_log_sees_what_hooks_see(self):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Log(self.folder, "net", batch=8) as log:
            log.watch(model, optimizer)
            for _ in range(2):
                for inputs, labels in log.steps(loader(24)):
                    with log.phase("copy_in"):
                        inputs = inputs.clone()
                    optimizer.zero_grad()
                    loss = loss_of(model, inputs, labels)
                    loss.backward()
                    optimizer.step()
                    log.result(loss)
                torch.save(model.state_dict(), io.BytesIO())
        rank = Rank(os.path.join(self.folder, "net-1", "rank-0.jsonl"))
        self.check_steps(rank, 6, "load", "copy_in", "forward", "backward", "update")
        self.assertEqual([step["step"] for step in rank.steps if "checkpoint" in step["phases"]], [2, 5])
        self.assertTrue(all(step["loss"] > 0 and step["examples"] == 8 and step["scheduling"] for step in rank.steps))


if __name__ == "__main__":
    unittest.main()
