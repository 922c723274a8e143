/* A small library with the symbols of NVIDIA's NVML that pg_mop calls, and known answers, for machines without a GPU.
 *
 * Device 0: 40, 60, 80 percent, and again; 1, 2, 3 GiB in use. Device 1: 20 percent, and lost after two readings of it.
 * Device 2, and the UUID "MIG-part": a part of a GPU, which tells its memory alone. "GPU-zero" is device 0. */

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INVALID_ARGUMENT 2
#define DRIVER_NOT_LOADED 9
#define GPU_IS_LOST 15

typedef struct { unsigned int number, asked, sized; } device;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long total, available, used; } memory;

static device devices[3] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}};
static int ready = 0;

static int same(const char *one, const char *other)
{
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

int nvmlInit_v2(void)
{
#ifdef WITHOUT_DRIVER
    return DRIVER_NOT_LOADED;
#else
    ready = 1;
    return SUCCESS;
#endif
}

const char *nvmlErrorString(int code)
{
    return code == GPU_IS_LOST ? "GPU is lost" : code == DRIVER_NOT_LOADED ? "Driver Not Loaded"
         : code == INVALID_ARGUMENT ? "Invalid Argument" : code == NOT_FOUND ? "Not Found" : (const char *)0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    if (!ready || index > 2) return INVALID_ARGUMENT;
    *handle = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    if (!ready) return INVALID_ARGUMENT;
    if (!same(uuid, "GPU-zero") && !same(uuid, "MIG-part")) return NOT_FOUND;
    *handle = &devices[uuid[0] == 'M' ? 2 : 0];
    return SUCCESS;
}

#ifndef WITHOUT_UTILIZATION
int nvmlDeviceGetUtilizationRates(void *handle, utilization *found)
{
    device *asked = handle;
    if (asked->number == 2) return NOT_SUPPORTED;
    if (asked->number == 1 && asked->asked >= 2) return GPU_IS_LOST;
    found->gpu = asked->number ? 20 : 40 + 20 * (asked->asked % 3);
    found->memory = 99;
    asked->asked++;
    return SUCCESS;
}
#endif

int nvmlDeviceGetMemoryInfo(void *handle, memory *found)
{
    device *asked = handle;
    if (asked->number == 1 && asked->asked >= 2) return GPU_IS_LOST;
    found->total = 8ull << 30;
    found->used = (unsigned long long)(asked->number == 2 ? 5 : 1 + asked->sized % 3) << 30;
    found->available = found->total - found->used;
    asked->sized++;
    return SUCCESS;
}
