/* All-reduces of float sums through MPI: allreduce_mpi BYTES TIMES. Rank 0 prints the seconds of each, until its slowest rank has it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 3) {
        fprintf(stderr, "usage: allreduce_mpi BYTES TIMES\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int rank, world, values = atol(argv[1]) / sizeof(float), times = atoi(argv[2]);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    float *numbers = malloc(values * sizeof(float));
    for (int round = -1; round < times; round++) { /* the first is not timed */
        for (int i = 0; i < values; i++)
            numbers[i] = 1;
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime(), own, slowest;
        MPI_Allreduce(MPI_IN_PLACE, numbers, values, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        own = MPI_Wtime() - begun;
        MPI_Reduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (numbers[0] != world || numbers[values - 1] != world) {
            fprintf(stderr, "a wrong sum\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (rank == 0 && round >= 0)
            printf("%.9f\n", slowest);
    }
    MPI_Finalize();
    return 0;
}
