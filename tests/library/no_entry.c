/* no_entry.c: a shared object without an entry function for Tandem. */
int nothing_for_tandem(void);

int nothing_for_tandem(void)
{
    return 0;
}
