/* MPI_Allreduce of floats: `allreduce REPETITIONS SECONDS SIZE...` prints `SIZE SECONDS` a repetition, the slowest
   rank's. Whole numbers, so that the sum is exact; a wrong one ends the program. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double once(float *data, int count, int rank, int world) {
  for (int i = 0; i < count; i++) data[i] = (float)((rank + 1) * (i % 13 - 6) + rank);
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  double mine = MPI_Wtime() - begin, slowest;
  for (int i = 0; i < count; i++)
    if (data[i] != (float)(world * (world + 1) / 2 * (i % 13 - 6) + world * (world - 1) / 2)) {
      fprintf(stderr, "wrong sum at %d on rank %d\n", i, rank);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

int main(int argc, char **argv) {
  int rank, world;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  int most = atoi(argv[1]);
  double budget = atof(argv[2]);
  for (int arg = 3; arg < argc; arg++) {
    long size = atol(argv[arg]);
    float *data = malloc(size);
    double spent = once(data, size / 4, rank, world); /* warms up */
    for (int i = 0; i < most && (i < 2 || spent < budget); i++) {
      double seconds = once(data, size / 4, rank, world);
      spent += seconds;
      if (rank == 0) printf("%ld %.9f\n", size, seconds);
    }
    free(data);
  }
  MPI_Finalize();
  return 0;
}
