"""The log of a script that says itself where its steps are; needs no PyTorch."""

import contextlib
import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from random import Random
from unittest import mock

SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
sys.path.insert(0, SOURCE)

from paceline import Log, clock, files, recorder, scheduling, step


def events(folder, rank=0):
    return list(files.read_lines(os.path.join(folder, f"rank-{rank}.jsonl")))


def steps_of(folder, rank=0):
    return [event["step"] for event in events(folder, rank) if "step" in event]


def launcher(folder):
    return list(files.read_lines(os.path.join(folder, "launcher.jsonl")))


class Batch:
    shape = (8, 3)


class TestCase(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.case = os.path.join(scratch.name, "net-1")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PACELINE")}
        for key in ("RANK", "WORLD_SIZE"):
            clean.pop(key, None)
        patch = mock.patch.dict(os.environ, clean, clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def log(self, **options):
        return Log(self.folder, "net", **{"patience": 0, **options})

    @contextlib.contextmanager
    def warnings(self, count):
        with contextlib.redirect_stderr(io.StringIO()) as told:
            yield told
        self.assertEqual(told.getvalue().count("paceline:"), count, told.getvalue())

    def python(self, code, **options):
        environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"}
        code = f"import os, signal, sys, time, paceline\nfolder = {self.folder!r}\n{textwrap.dedent(code)}"
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, **options)


def apart(marks, end):
    """Phases and moments of marks."""
    return [phase for phase, _ in marks], [moment for _, moment in marks] + [end]


class Arithmetic(unittest.TestCase):
    def exchange(self, begun, ended):
        return begun, ended, 4, 0

    def test_phases_follow_the_marks_and_what_no_phase_holds_is_left_out(self):
        marks = [(None, 0), ("load", 10), (None, 15), ("forward", 20), ("backward", 50), (None, 90)]
        phases, waits = step.tile(*apart(marks, 100), [])
        self.assertEqual(phases, {"load": 5, "forward": 30, "backward": 40})
        self.assertEqual(waits, [])

    def test_a_wait_ends_with_its_last_exchange_and_the_rest_is_copying(self):
        marks = [("backward", 0), ("comm_wait", 50), (None, 80)]
        exchanges = [self.exchange(20, 60), self.exchange(40, 75), self.exchange(90, 95)]
        phases, waits = step.tile(*apart(marks, 100), exchanges)
        self.assertEqual(phases, {"backward": 50, "comm_wait": 25, "comm_cpu": 5})
        self.assertEqual(waits, [(50, 75)])

    def test_an_exchange_that_backward_hid_is_no_wait(self):
        marks = [("backward", 0), ("comm_wait", 50), (None, 52)]
        self.assertEqual(step.tile(*apart(marks, 60), [self.exchange(20, 40)]), ({"backward": 50, "comm_cpu": 2}, []))

    def test_a_wait_without_an_exchange_lasts_until_the_next_mark(self):
        self.assertEqual(step.tile(*apart([("comm_wait", 5), (None, 9)], 10), []), ({"comm_wait": 4}, [(5, 9)]))

    def test_overlapping_exchanges_keep_the_line_busy_once(self):
        exchanges = [self.exchange(0, 10), self.exchange(5, 20), self.exchange(30, 31)]
        self.assertEqual(step.under_way([None], [0, 40], exchanges), (21, 0))

    def test_an_exchange_overlaps_with_what_is_computed_meanwhile(self):
        marks = [("forward", 0), ("backward", 10), ("comm_wait", 30), ("update", 40), (None, 50)]
        exchanges = [self.exchange(20, 34), self.exchange(25, 45)]
        self.assertEqual(step.under_way(*apart(marks, 60), exchanges), (25, 15), "20 to 30 and 40 to 45")
        self.assertEqual(step.under_way(*apart(marks, 60), []), (0, 0))

    def test_many_exchanges_overlap_as_counted_one_by_one(self):
        random = Random(7)
        names = [random.choice(["forward", "backward", "comm_wait", None, "update"]) for _ in range(60)]
        moments = sorted(random.randrange(500) for _ in range(61))
        for _ in range(50):
            begins = sorted(random.randrange(520) for _ in range(random.randrange(1, 40)))
            exchanges = [self.exchange(begun, begun + random.randrange(30)) for begun in begins]
            busy = {tick for begun, ended, _, _ in exchanges for tick in range(begun, ended)}
            computed = {tick for name, begin, end in zip(names, moments, moments[1:]) if name in step.COMPUTING for tick in range(begin, end)}
            self.assertEqual(step.under_way(names, moments, exchanges), (len(busy), len(busy & computed)))

    def test_examples_are_the_rows_of_the_first_tensor(self):
        self.assertEqual(step.count_examples(Batch()), 8)
        self.assertEqual(step.count_examples({"x": [Batch(), None]}), 8)
        self.assertIsNone(step.count_examples(7))


class FakeCuda:
    """A device whose clock is 1 ms behind by the time of the second step."""

    class Event:
        time = 0.0

        def __init__(self, enable_timing):
            self.at = None

        def record(self):
            self.at = FakeCuda.Event.time

        def query(self):
            return True

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at

    cuda = Stream = None

    @staticmethod
    def stream(_):
        return contextlib.nullcontext()


FakeCuda.cuda, FakeCuda.Stream = FakeCuda, object


class DeviceClock(unittest.TestCase):
    def test_moments_are_the_devices_but_never_before_the_call(self):
        host = iter([1_000_000, 2_000_000, 3_000_000, 9_000_000, 30_000_000, 99_000_000])
        with mock.patch.object(clock, "now", lambda: next(host)):
            device = clock.CudaClock(FakeCuda)
            stamps = []
            for at in (2.0, 4.0, 7.0):  # milliseconds after the anchor, which lies at 1 ms
                FakeCuda.Event.time = at
                stamps.append(device.stamp())
            moments = device.moments(stamps, 2)
        # The third would have come to 8 ms, but was asked for at 9.
        self.assertEqual(moments, [4_000_000, 6_000_000, 9_000_000])
        self.assertEqual(device.anchored, 9_000_000)

    def test_events_are_used_again_and_none_is_free_twice(self):
        device = clock.CudaClock(FakeCuda)
        first = device.anchor
        made = {id(first)}
        end = device.stamp()
        for _ in range(50):
            # The end of a step is the begin of the next, and of its load.
            stamps = [end, end] + [device.stamp() for _ in range(5)]
            made.update(id(event) for event, _ in stamps)
            device.moments(stamps, len(stamps) - 1)
            end = stamps[-1]
            self.assertEqual(len({id(event) for event in device.free}), len(device.free))
            self.assertNotIn(end[0], device.free)
        self.assertLessEqual(len(made), 14, "as many as two steps need")

    def test_a_device_that_keeps_up_with_the_host_is_starved(self):
        marks = [(None, 0), ("forward", 100), ("backward", 200), ("update", 300), (None, 400)]
        self.assertEqual(step.starved(*apart(marks, 500), [0, 5, 5, 5, 5, 5], 30), 300)
        self.assertEqual(step.starved(*apart(marks, 500), [900, 900, 5, 5, 900, 900], 30), 100, "backward alone began and ended so")
        self.assertEqual(step.starved(*apart(marks, 500), [900] * 6, 30), 0)
        self.assertEqual(step.starved(["backward"], [0, 20_000], [0, 900], 30), 20_000, "a twentieth of the phase is not much")

    def test_lags_are_how_far_the_device_is_behind_the_call(self):
        host = iter([1_000_000, 2_000_000, 3_000_000, 30_000_000])
        with mock.patch.object(clock, "now", lambda: next(host)):
            device = clock.CudaClock(FakeCuda)
            start = FakeCuda.Event.time
            stamps = []
            for after in (1.0, 5.0):
                FakeCuda.Event.time = start + after
                stamps.append(device.stamp())
            device.moments(stamps, 1)
        self.assertEqual(device.lags, [0, 3_000_000])


class Scheduled(unittest.TestCase):
    def told(self, marks, end, phases, waited, worst=0):
        names, moments = apart([mark[:2] for mark in marks], end[0])
        cpus = [cpu for _, _, cpu in marks] + [end[1]]
        return scheduling.told(names, moments, cpus, phases, (0, 0, 0, 0), (waited, worst, 9, end[1]))

    def test_waiting_for_a_core_is_where_the_processor_clock_lacks_it(self):
        marks = [("forward", 0, 0), ("backward", 100, 60), ("comm_wait", 200, 150), (None, 250, 150)]
        phases = {"forward": 100, "backward": 100, "comm_wait": 50}
        cpu, process, queued, off_core = self.told(marks, (260, 155), phases, 70)
        self.assertEqual(off_core, {"forward": 40, "backward": 10, "comm_wait": 20})
        self.assertEqual((cpu, process, queued), (155, 9, 70))

    def test_a_thread_that_sleeps_was_not_kept_from_a_core(self):
        marks = [("forward", 0, 0), (None, 100, 20)]
        self.assertEqual(self.told(marks, (100, 20), {"forward": 100}, 0)[3], {})

    def test_another_thread_that_waited_longer_held_the_step_up(self):
        marks = [("forward", 0, 0), (None, 100, 20)]
        self.assertEqual(self.told(marks, (100, 20), {"forward": 100}, 5, worst=50)[3], {"forward": 50})

    def test_where_marks_do_not_tell_all_phases_waited_their_part(self):
        marks = [("forward", 0, None), ("backward", 30, None), (None, 90, None)]
        off_core = self.told(marks, (100, 0), {"forward": 30, "backward": 60}, 10, worst=50)[3]
        self.assertEqual(off_core, {"forward": 3, "backward": 6, "other": 1})
        self.assertEqual(self.told([("forward", 0, None)], (100, 0), {"forward": 100}, 500)[3], {"forward": 100})

    def test_marks_tell_processor_time_while_there_are_too_few_cores_and_in_long_steps(self):
        watched = scheduling.Scheduler(alone=True)
        self.addCleanup(watched.close)
        if watched.main is None:
            self.skipTest("this system does not tell")
        clock, waited = [0], [0]

        def close_after(length, wait):
            clock[0] += length
            waited[0] += wait
            watched.read()
            return watched.close_steps > 0

        told = mock.patch.object(scheduling.os, "pread", lambda *_: b"1 %d 1" % waited[0])
        with told, mock.patch.object(scheduling, "now", lambda: clock[0]):
            for _ in range(scheduling.CLOSE + 1):
                close_after(1_000_000, 0)
            self.assertFalse(close_after(1_000_000, 9_000))
            self.assertTrue(close_after(1_000_000, 11_000))
            for _ in range(scheduling.CLOSE):
                self.assertTrue(watched.close_steps > 0)
                close_after(1_000_000, 0)
            self.assertFalse(watched.close_steps > 0)
            self.assertTrue(close_after(30_000_000, 0))

    def test_counters_of_this_process_only_go_up(self):
        watched = scheduling.Scheduler()
        self.addCleanup(watched.close)
        first, second = watched.read(), watched.read()
        if first is not None:
            self.assertTrue(all(later >= earlier for later, earlier in zip(second, first)))


class Claims(TestCase):
    def claim(self, rank, world, head=True):
        lines = files.claim(self.folder, rank, world)
        if head:
            lines.head({"rank": rank, "world": world})
        lines.close()
        return os.path.relpath(lines.path, self.folder)

    def test_a_second_training_gets_the_next_folder(self):
        self.assertEqual([self.claim(0, 2), self.claim(1, 2)], ["rank-0.jsonl", "rank-1.jsonl"])
        self.assertEqual([self.claim(1, 2), self.claim(0, 2)], ["2/rank-1.jsonl", "2/rank-0.jsonl"])
        self.assertEqual(self.claim(0, 2), "3/rank-0.jsonl")

    def test_ranks_of_another_number_of_workers_do_not_join(self):
        self.claim(0, 1)
        self.assertEqual([self.claim(0, 2), self.claim(1, 2)], ["2/rank-0.jsonl", "2/rank-1.jsonl"])


class Logging(TestCase):
    def test_a_line_is_what_a_writer_of_json_makes_of_it(self):
        exchange = {"bytes": 4, "begun": 1, "ended": 2, "cpu": 0}
        scheduled = {"cpu": 3, "process_cpu": 5, "queued": 1, "off_core": {"load": 1}}
        for record in (
            {"step": 3, "begin": 1, "end": 9, "phases": {"load": 2, "forward": 3}, "examples": 8, "loss": 1e-7},
            {"step": 0, "begin": 0, "end": 5, "phases": {}, "examples": 0, "loss": None, "comm_busy": 2,
             "overlapped": 1, "arrivals": [exchange, exchange], "waits": [[1, 2], [3, 4]],
             "scheduling": scheduled, "starved": 7, "sampled": False},
        ):
            plain = {**record, "arrivals": [(1, 2, 4, 0)] * 2, "scheduling": (3, 5, 1, {"load": 1})}
            self.assertEqual(step.step_line(plain if "arrivals" in record else record), files.to_line({"step": record}))

    def test_steps_are_written_many_at_a_time_and_all_at_the_end(self):
        log = self.log()
        seen = []
        for _ in log.steps(range(100)):
            seen.append(len(steps_of(self.case)))
        self.assertLess(len(set(seen)), 10, "a write a step costs more than all else")
        log.close()
        self.assertEqual([step["step"] for step in steps_of(self.case)], list(range(100)))

    def test_a_slow_step_is_written_without_waiting_for_many(self):
        log = self.log()
        with mock.patch.object(recorder, "SELDOM", 0):
            for number in log.steps(range(4)):
                self.assertEqual(len(steps_of(self.case)), number)
        log.close()

    def test_steps_are_seamless_and_their_phases_fit_in(self):
        log = self.log()
        for _ in log.steps([Batch()] * 3):
            with log.phase("forward"):
                time.sleep(0.002)
            log.result(loss=1.5)
        log.close()
        steps = steps_of(self.case)
        self.assertEqual([step["step"] for step in steps], [0, 1, 2])
        for before, after in zip(steps, steps[1:]):
            self.assertEqual(before["end"], after["begin"])
        for step in steps:
            self.assertGreaterEqual(step["phases"]["forward"], 2_000_000)
            self.assertLessEqual(sum(step["phases"].values()), step["end"] - step["begin"])
            self.assertEqual((step["examples"], step["loss"]), (8, 1.5))
        main, done = events(self.case)[1]["main"], events(self.case)[-1]["done"]
        self.assertLessEqual(main["at"], steps[0]["begin"])
        self.assertGreaterEqual(done["at"], steps[-1]["end"])
        self.assertGreater(done["peak_resident"], 1 << 20)

    def test_the_launchers_log_is_held_while_the_run_is_under_way(self):
        def is_held():
            with open(os.path.join(self.case, files.LAUNCHER)) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
                return False

        log = self.log()
        self.assertTrue(is_held())
        log.close()
        self.assertFalse(is_held())

    def test_imports_lie_behind_main(self):
        self.assertEqual(self.python("""
            time.sleep(0.3)
            log = paceline.Log(folder, "net")
            for _ in log.steps(range(2)): pass
            log.close()
        """).returncode, 0)
        main = events(self.case)[1]["main"]["at"]
        self.assertGreater(steps_of(self.case)[0]["begin"] - main, 250_000_000)

    def test_evaluation_between_epochs_belongs_to_the_step_before(self):
        log = self.log()
        for _ in range(2):
            for _ in log.steps(range(2)):
                pass
            with log.phase("eval"):
                time.sleep(0.002)
        log.close()
        steps = steps_of(self.case)
        self.assertEqual([("eval" in step["phases"]) for step in steps], [False, True, False, True])
        self.assertEqual(steps[1]["end"], steps[2]["begin"])
        self.assertGreaterEqual(steps[3]["end"] - steps[3]["begin"], 2_000_000)

    def test_a_loop_that_is_left_early_ends_its_step(self):
        log = self.log()
        for number in log.steps(range(100)):
            if number == 2:
                break
        log.close()
        self.assertEqual(len(steps_of(self.case)), 3)

    def test_passes_of_a_step_are_summed_and_a_loss_that_is_no_number_is_unknown(self):
        log = self.log()
        for loss in log.steps([1.0, float("nan")]):
            log.result(loss, examples=4)
            log.result(loss + 1, examples=4)
        log.close()
        self.assertEqual([(s["examples"], s["loss"]) for s in steps_of(self.case)], [(8, 1.5), (8, None)])

    def test_an_unknown_phase_is_refused(self):
        with self.assertRaisesRegex(ValueError, "none of the phases"), self.log().phase("lunch"):
            pass

    def test_the_launchers_log_holds_the_run(self):
        log = self.log()
        for _ in log.steps(range(2)):
            pass
        log.close()
        header, spawn, reap, over = launcher(self.case)
        self.assertEqual((header["format"], header["case"]["workers"]), ("paceline-log", 1))
        self.assertEqual(spawn["spawn"]["at"], events(self.case)[1]["main"]["at"])
        self.assertGreaterEqual(reap["reap"]["at"], events(self.case)[-1]["done"]["at"])
        self.assertEqual(over, {"over": {"outcome": "done", "reason": None}})

    def test_a_study_collects_cases_and_repeats_and_replaces_what_runs_again(self):
        for options in ({}, {"repeat": 2}, {"world": 2, "rank": 0}, {}, {"settings": {"lr": 1}, "name": "other"}):
            with self.warnings(0):
                self.log(**options).close("only opened")
        with open(os.path.join(self.folder, "study.json")) as file:
            study = json.load(file)
        cases = [(case["folder"], case["place"], case["repeat"]) for case in study["cases"]]
        self.assertEqual(sorted(cases), [("net-1", 0, 1), ("net-1-repeat-2", 0, 2), ("net-2", 1, 1), ("other", 2, 1)])

    def test_an_exception_is_the_reason_why_it_failed(self):
        with self.assertRaises(ZeroDivisionError), self.log() as log:
            for _ in log.steps(range(5)):
                1 / 0
        over = launcher(self.case)[-1]["over"]
        self.assertEqual(over["outcome"], "failed")
        self.assertIn("ZeroDivisionError", over["reason"])

    def test_a_log_that_nobody_closes_is_no_finished_run(self):
        done = self.python("""
            log = paceline.Log(folder, "net")
            for _ in log.steps(range(3)): pass
        """)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(steps_of(self.case)), 3)
        self.assertIn("close()", launcher(self.case)[-1]["over"]["reason"])


class Ranks(TestCase):
    def write(self, rank, done=True):
        """The log of a rank of two."""
        case = os.path.join(self.folder, "net-2")
        os.makedirs(case, exist_ok=True)
        lines = files.Lines(os.path.join(case, f"rank-{rank}.jsonl"))
        lines.head({"rank": rank, "world": 2, "host": "here"})
        lines.append({"main": {"at": 100, "pid": 1}})
        if done:
            lines.append({"done": {"at": 1300, "peak_resident": 1, "peak_device": None}})
        lines.close()
        return case

    def test_rank_0_waits_for_the_others_but_not_for_ever(self):
        log = self.log(world=2, rank=0, patience=0.1)
        self.write(1, done=False)
        for _ in log.steps(range(2)):
            pass
        log.close()
        over = launcher(log.folder)[-1]["over"]
        self.assertEqual(over["outcome"], "failed")
        self.assertIn("rank 1 did not close", over["reason"])

    def test_a_log_of_an_earlier_run_is_nobodys(self):
        case = self.write(1)
        os.utime(os.path.join(case, "rank-1.jsonl"), (1, 1))
        log = self.log(world=2, rank=0, patience=0)
        for _ in log.steps(range(2)):
            pass
        log.close()
        self.assertIn("rank 1 did not close", launcher(log.folder)[-1]["over"]["reason"])


class Robustness(TestCase):
    def test_a_folder_that_cannot_be_written_costs_one_warning(self):
        blocked = os.path.join(self.folder, "file")
        with open(blocked, "w"):
            pass
        with self.warnings(1):
            log = Log(blocked, "net")
            seen = [number for number in log.steps(range(5)) if log.result(1.0) is None]
            with log.phase("eval"):
                pass
            log.close()
        self.assertEqual(seen, [0, 1, 2, 3, 4])

    def test_a_full_disk_costs_one_warning_and_leaves_whole_lines(self):
        log = self.log()
        real, room = os.write, [400]

        def write(file, data):
            if room[0] == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(room[0], len(data))
            room[0] -= taken
            return real(file, data[:taken])

        with self.warnings(1), mock.patch.object(os, "write", write):
            seen = list(log.steps(range(20)))
            log.close()
        self.assertEqual(len(seen), 20)
        self.assertGreater(len(steps_of(self.case)), 0)

    def test_another_programs_study_is_left_alone(self):
        path = os.path.join(self.folder, "study.json")
        with open(path, "w") as file:
            file.write('{"schema":2,"program":"paceline 0.1.0"}')
        with self.warnings(1):
            self.log().close()
        self.assertEqual(files.read_text(path), '{"schema":2,"program":"paceline 0.1.0"}')

    def test_a_killed_rank_leaves_whole_lines(self):
        done = self.python("""
            log = paceline.Log(folder, "net")
            for number in log.steps(range(100)):
                if number == 50:
                    os.kill(os.getpid(), signal.SIGKILL)
        """)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertGreaterEqual(len(steps_of(self.case)), 50 - recorder.MANY, "what was not written yet is lost")
        with open(os.path.join(self.case, "rank-0.jsonl")) as file:
            self.assertTrue(file.read().endswith("\n"))

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_process_writes_nothing(self):
        done = self.python("""
            log = paceline.Log(folder, "net")
            for number in log.steps(range(4)):
                child = os.fork()
                if child == 0:
                    log.result(9.0)
                    with log.phase("eval"): pass
                    for _ in log.steps(range(3)): pass
                    log.close()
                    sys.exit(0)
                os.waitpid(child, 0)
            log.close()
        """)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(s["step"], s["loss"]) for s in steps_of(self.case)], [(n, None) for n in range(4)])
        self.assertEqual(launcher(self.case)[-1]["over"]["outcome"], "done")


if __name__ == "__main__":
    unittest.main()
