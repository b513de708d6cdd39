/* libcusolver: handles. The solvers are generated stubs that succeed; stubs.py knows the sizes they ask for.
 */
#include "stub.h"

CREATE(cusolverDnCreate)
DESTROY(cusolverDnDestroy)
CREATE(cusolverDnCreateParams)
DESTROY(cusolverDnDestroyParams)
API cusolverDnSetStream(H handle, H stream) { return 0; }
