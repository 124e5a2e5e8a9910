// Runs the cases in the emulator.
//   shims all [SEED]       every case, threads shuffled by SEED unless it is 0; one line a failure, then the count
//   shims full             larger shapes of the whole kernels too
//   shims write FOLDER     the cases for run_cuda.py
//   shims fault NAME       one fault: must not exit with 0
//   shims faults           their names
#include "cases.h"

using namespace shims;

static int run_all(const std::vector<Case>& cases) {
    int failed = 0;
    for (const Case& c : cases) {
        const std::string complaint = run(c);
        if (complaint.empty()) continue;
        printf("FAIL %s: %s\n", c.name.c_str(), complaint.c_str());
        ++failed;
    }
    printf("%zu cases, %d failed\n", cases.size(), failed);
    return failed != 0;
}

int main(int argc, char** argv) {
    const std::string mode = argc > 1 ? argv[1] : "all", more = argc > 2 ? argv[2] : "";
    if (mode == "fault" || mode == "faults") {
        std::vector<Case> faults;
        fault_cases(faults);
        tile_fault_cases(faults);
        tile_mpp_fault_cases(faults);
        for (const Case& c : faults) {
            if (mode == "faults") printf("%s\n", c.name.c_str());
            else if (c.name == more) return run_all({c});
        }
        if (mode == "faults") return 0;
        fprintf(stderr, "no fault is called %s\n", more.c_str());
        return 0;
    }
    std::vector<Case> cases;
    math_cases(cases);
    vector_cases(cases);
    lane_cases(cases);
    atomic_cases(cases);
    example_cases(cases, mode == "full");
    tile_cases(cases, mode == "full");
    tile_mpp_cases(cases, mode == "full");
    if (mode == "write") { write_cases(cases, more); return 0; }
    if (mode == "all" && !more.empty()) emu::schedule_seed = unsigned(std::stoul(more));
    return run_all(cases);
}
