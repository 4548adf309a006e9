/* Asks cuGetProcAddress of a library, in both forms, for every row of a table of measured answers, and
 * checks what it says to names, versions and flags that have none.
 * Arguments: the library, the table (name, kind, from_version, symbol). Prints what differs. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);

#define DRIVER 13000

static int failures;
static void *library;
static get_v1 v1;
static get_v2 v2;

static void differ(const char *name, int version, uint64_t flags, const char *what)
{
    printf("%s@%d flags %d: %s\n", name, version, (int)flags, what);
    failures++;
}

static void expect(const char *name, int version, uint64_t flags, const char *symbol)
{
    void *wanted = dlsym(library, symbol), *found = NULL;
    int status = -1;
    if (!wanted)
        differ(name, version, flags, "not exported");
    if (v2(name, &found, version, flags, &status) != 0 || status != 0 || found != wanted)
        differ(name, version, flags, symbol);
    found = NULL;
    if (v2(name, &found, version, flags, NULL) != 0 || found != wanted)
        differ(name, version, flags, "status NULL");
    found = NULL;
    if (v1(name, &found, version, flags) != 0 || found != wanted)
        differ(name, version, flags, "form of 11.3");
}

static void expect_miss(const char *name, int version, int why)
{
    void *marker = &failures, *found = marker;
    int status = -1;
    if (v2(name, &found, version, 0, &status) != 0 || status != why || found != NULL)
        differ(name, version, 0, "should be missed");
    found = marker;
    if (v1(name, &found, version, 0) != 500 || found != marker)
        differ(name, version, 0, "should be missed by the form of 11.3");
}

static void expect_refusal(const char *name, int version, uint64_t flags)
{
    void *marker = &failures, *found = marker;
    int status = -1;
    if (v2(name, &found, version, flags, &status) != 1 || status != -1 || found != marker)
        differ(name, version, flags, "should be refused");
    if (v1(name, &found, version, flags) != 1 || found != marker)
        differ(name, version, flags, "should be refused by the form of 11.3");
}

int main(int count, char **arguments)
{
    char line[512], name[128], kind[32], symbol[128], previous[160] = "";
    int version, rows = 0;
    FILE *table;
    if (count != 3)
        return 2;
    library = dlopen(arguments[1], RTLD_NOW);
    table = fopen(arguments[2], "r");
    if (!library || !table) {
        printf("%s\n", library ? "no table" : dlerror());
        return 2;
    }
    v1 = (get_v1)dlsym(library, "cuGetProcAddress");
    v2 = (get_v2)dlsym(library, "cuGetProcAddress_v2");
    while (fgets(line, sizeof line, table)) {
        char key[160];
        if (line[0] == '#' || sscanf(line, "%127s %31s %d %127s", name, kind, &version, symbol) != 4)
            continue;
        if (version > DRIVER)
            continue;
        rows++;
        expect(name, version, strcmp(kind, "l") ? 2 : 0, symbol);
        expect(name, version, strcmp(kind, "l") ? 3 : 1, symbol);
        snprintf(key, sizeof key, "%s %s", name, kind);
        if (strcmp(key, previous) && !strcmp(kind, "l"))
            expect_miss(name, version - 1, 2);
        strcpy(previous, key);
    }
    expect_miss("", 0, 1);
    expect_miss("cuNothing", DRIVER, 1);
    expect_miss("cuMemAlloc_v2", DRIVER, 1);
    expect_miss("cuMemAlloc", 0, 2);
    expect_refusal("cuMemAlloc", DRIVER, 4);
    expect_refusal("cuMemAlloc", DRIVER + 1, 0);
    if (v2(NULL, (void **)&v1, DRIVER, 0, NULL) != 1 || v2("cuInit", NULL, DRIVER, 0, NULL) != 1)
        differ("NULL", DRIVER, 0, "should be refused");
    printf("%d rows, %d failures\n", rows, failures);
    return rows > 600 && failures == 0 ? 0 : 1;
}
