// All-reduces of float sums through Gloo over TCP, and what happens to them when a member is lost:
//
//   allreduce_gloo FOLDER ADDRESS RANK WORLD BYTES TIMEOUT_MS TIMES
//
// Members find each other through files in FOLDER. Rank 0 prints the seconds of each all-reduce, until the slowest rank has it.
// With 0 TIMES members go on until one is lost: they write the file ready-RANK after a few, and when an all-reduce fails they read from the
// file `lost` who is missing, form a group without it, and do one more. Then they print, as seconds of the system's monotonic clock, when
// the all-reduce failed, when the new group was there and when its first all-reduce was done.
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gloo/allreduce.h"
#include "gloo/math.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/prefix_store.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

using Group = std::shared_ptr<gloo::rendezvous::Context>;

constexpr int kWarmUp = 3;
constexpr auto kPatience = std::chrono::seconds(30);

double now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// Keys are files, looked for every millisecond: Gloo's own store of files does so every ten, which would count against it here.
struct Folder : gloo::rendezvous::Store {
    std::string path;
    explicit Folder(std::string path) : path(std::move(path)) {}

    std::string file(const std::string& key) const {
        std::string name = path + "/";
        for (char letter : key) name += letter == '/' ? '-' : letter;
        return name;
    }
    void set(const std::string& key, const std::vector<char>& data) override {
        std::string name = file(key), draft = name + ".draft-" + std::to_string(getpid());
        std::ofstream(draft, std::ios::binary).write(data.data(), data.size());
        if (rename(draft.c_str(), name.c_str())) throw std::runtime_error("cannot write " + name);
    }
    void wait(const std::vector<std::string>& keys) override { wait(keys, kPatience); }
    void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
        auto until = steady_clock::now() + timeout;
        for (const auto& key : keys)
            while (access(file(key).c_str(), R_OK)) {
                if (steady_clock::now() > until) throw std::runtime_error("nobody has written " + file(key));
                std::this_thread::sleep_for(milliseconds(1));
            }
    }
    std::vector<char> get(const std::string& key) override {
        wait({key});
        std::ifstream in(file(key), std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
};

struct Member {
    Folder folder;
    std::string address;
    int rank, world;
    milliseconds timeout;

    Group join(const std::string& name, int rank, int world) {
        std::shared_ptr<gloo::transport::Device> device =
            gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
        auto group = std::make_shared<gloo::rendezvous::Context>(rank, world);
        group->setTimeout(timeout);
        gloo::rendezvous::PrefixStore store(name, folder);
        group->connectFullMesh(store, device);
        return group;
    }
};

using Function = void (*)(void*, const void*, const void*, size_t);

void allreduce(const Group& group, std::vector<float>& values, Function function = gloo::sum<float>) {
    gloo::AllreduceOptions options(group);
    // One rank may be done with one all-reduce and in the next while others are not.
    options.setTag(group->nextSlot());
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(function);
    gloo::allreduce(options);
}

// Fills, adds up and checks; the seconds that it took this rank.
double add_up(const Group& group, std::vector<float>& values) {
    std::fill(values.begin(), values.end(), 1.0f);
    std::vector<float> barrier(1);
    allreduce(group, barrier);
    double begun = now();
    allreduce(group, values);
    double seconds = now() - begun;
    if (values.front() != group->size || values.back() != group->size) throw std::runtime_error("a wrong sum");
    return seconds;
}

void measure(Member& member, std::vector<float>& values, int times) {
    auto group = member.join("group", member.rank, member.world);
    for (int round = -kWarmUp; round < times; round++) {
        std::vector<float> slowest(1, static_cast<float>(add_up(group, values)));
        allreduce(group, slowest, gloo::max<float>);
        if (member.rank == 0 && round >= 0) printf("%.6f\n", slowest[0]);
    }
}

void endure(Member& member, std::vector<float>& values) {
    auto group = member.join("group", member.rank, member.world);
    std::string why;
    double failed = 0;
    for (int round = 0; why.empty(); round++) {
        if (round == kWarmUp) member.folder.set("ready-" + std::to_string(member.rank), {'.'});
        try {
            add_up(group, values);
        } catch (const gloo::IoException& error) {
            failed = now();
            why = error.what();
        }
    }
    // Closed first: whoever waits for this member then hears of it, too.
    group.reset();
    auto text = member.folder.get("lost");
    int lost = std::stoi(std::string(text.begin(), text.end()));
    group = member.join("next", member.rank - (member.rank > lost), member.world - 1);
    double formed = now();
    add_up(group, values);
    printf("%.6f %.6f %.6f %s\n", failed, formed, now(), why.c_str());
}

}  // namespace

int main(int count, char** words) {
    if (count != 8) {
        fprintf(stderr, "usage: allreduce_gloo FOLDER ADDRESS RANK WORLD BYTES TIMEOUT_MS TIMES\n");
        return 2;
    }
    // Gloo writes to connections that others may have closed.
    signal(SIGPIPE, SIG_IGN);
    try {
        Member member{Folder(words[1]), words[2], std::stoi(words[3]), std::stoi(words[4]), milliseconds(std::stol(words[6]))};
        std::vector<float> values(std::stoul(words[5]) / sizeof(float));
        int times = std::stoi(words[7]);
        times ? measure(member, values, times) : endure(member, values);
    } catch (const std::exception& error) {
        fprintf(stderr, "allreduce_gloo: %s\n", error.what());
        return 1;
    }
}
