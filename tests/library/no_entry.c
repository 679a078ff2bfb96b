/* no_entry.c: a shared object that has nothing for tandem. */
int nothing_for_tandem(void);

int nothing_for_tandem(void)
{
    return 0;
}
